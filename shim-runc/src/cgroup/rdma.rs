//! The form of RDMA files, which is the same in both cgroup versions.

use super::text;

/// Lines of `mlx4_0 hca_handle=2 hca_object=max`: device, handles, objects.
pub(crate) fn entries(content: &[u8]) -> impl Iterator<Item = (&str, u32, u32)> {
    text::lines(content).filter_map(|line| {
        let mut words = text::words(line);
        let device = str::from_utf8(words.next()?).ok()?;
        let (mut handles, mut objects) = (None, None);
        for (key, value) in words.filter_map(text::assignment) {
            // The fields are 32 bits wide, and `max` is their largest value.
            let value = text::limit(value).map(|v| u32::try_from(v).unwrap_or(u32::MAX));
            match key {
                b"hca_handle" => handles = value,
                b"hca_object" => objects = value,
                _ => {}
            }
        }
        Some((device, handles?, objects?))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits_in_words_are_the_largest_number() {
        let text = b"mlx4_0 hca_handle=2 hca_object=2000\nocrdma1 hca_handle=max hca_object=max\n";
        let found: Vec<_> = entries(text).collect();
        assert_eq!(found, [("mlx4_0", 2, 2000), ("ocrdma1", u32::MAX, u32::MAX)]);
    }

    #[test]
    fn lines_of_another_form_are_passed_over() {
        assert_eq!(entries(b"mlx4_0 hca_handle=2\nx\n\xff hca_handle=1 hca_object=1").count(), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = entries(&text).count();
        }
    }
}
