//! The few forms in which the kernel writes numbers into cgroup files.
//!
//! Everything here takes bytes of any kind: what does not have the form is passed over.

/// Numbers that the kernel calls "no limit" in words.
const UNLIMITED: &[u8] = b"max";

/// The lines of a file.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

/// The words of a line.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// A number. Counters that the kernel shows below zero for a moment, or that do not fit, are
/// clamped: a single odd value must not cost the reader all others.
pub(super) fn number(word: &[u8]) -> Option<u64> {
    let word = word.trim_ascii();
    if let Some(digits) = word.strip_prefix(b"-") {
        return all_digits(digits).then_some(0);
    }
    if !all_digits(word) {
        return None;
    }
    let add = |value: u64, digit: &u8| {
        value.saturating_mul(10).saturating_add(u64::from(digit.saturating_sub(b'0')))
    };
    Some(word.iter().fold(0, add))
}

/// A number or `max`, which is the largest one.
pub(super) fn limit(word: &[u8]) -> Option<u64> {
    if word.trim_ascii() == UNLIMITED { Some(u64::MAX) } else { number(word) }
}

/// Lines of `key value`.
pub(super) fn flat_keyed(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    lines(text).filter_map(|line| {
        let mut words = words(line);
        Some((words.next()?, number(words.next()?)?))
    })
}

/// The value of one key among lines of `key value`.
pub(super) fn value_of(text: &[u8], key: &[u8]) -> Option<u64> {
    flat_keyed(text).find(|(found, _)| *found == key).map(|(_, value)| value)
}

/// `key=value` in the middle of a line.
pub(super) fn assignment(word: &[u8]) -> Option<(&[u8], &[u8])> {
    let middle = word.iter().position(|&byte| byte == b'=')?;
    let (key, value) = word.split_at(middle);
    Some((key, value.get(1..)?))
}

/// A device number such as `8:0`.
pub(super) fn device(word: &[u8]) -> Option<(u64, u64)> {
    let mut parts = word.splitn(2, |&byte| byte == b':');
    Some((number(parts.next()?)?, number(parts.next()?)?))
}

fn all_digits(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_clamped_and_other_words_refused() {
        assert_eq!(number(b"42\n"), Some(42));
        assert_eq!(number(b"-1"), Some(0));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b"99999999999999999999999"), Some(u64::MAX));
        for other in [&b""[..], b"-", b"max", b"1 2", b"0x1", b"4\xff"] {
            assert_eq!(number(other), None, "{other:?}");
        }
        assert_eq!(limit(b"max\n"), Some(u64::MAX));
        assert_eq!(limit(b"7"), Some(7));
    }

    #[test]
    fn one_bad_line_leaves_the_others() {
        let text = b"anon 1\nfile\n\nslab x\nsock 4 5\nshmem 6";
        let found: Vec<_> = flat_keyed(text).collect();
        assert_eq!(found, [(&b"anon"[..], 1), (b"sock", 4), (b"shmem", 6)]);
        assert_eq!(value_of(text, b"shmem"), Some(6));
        assert_eq!(value_of(text, b"slab"), None);
    }

    #[test]
    fn devices_and_assignments_are_split_once() {
        assert_eq!(device(b"259:3"), Some((259, 3)));
        assert_eq!(device(b"259"), None);
        assert_eq!(device(b"a:3"), None);
        assert_eq!(assignment(b"rbytes=1=2"), Some((&b"rbytes"[..], &b"1=2"[..])));
        assert_eq!(assignment(b"rbytes"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (number(&text), limit(&text), device(&text), assignment(&text));
            prop_assert!(flat_keyed(&text).count() <= text.len());
        }

        #[test]
        fn printed_numbers_read_back(value: u64) {
            prop_assert_eq!(number(format!("{value}\n").as_bytes()), Some(value));
        }
    }
}
