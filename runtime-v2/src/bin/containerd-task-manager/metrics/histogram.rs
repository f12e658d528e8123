//! Durations in buckets.

use std::time::Duration;

use super::Page;

/// Upper bounds in milliseconds: a look takes one, a run of an OCI runtime tens, a slow disk
/// seconds.
const BOUNDS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 5000, 30_000];

/// How many durations fell into which bucket.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: Duration,
}

impl Histogram {
    pub(super) fn observe(&mut self, took: Duration) {
        let limits = BOUNDS.iter().map(|bound| Duration::from_millis(*bound));
        if let Some((_, bucket)) = limits.zip(&mut self.buckets).find(|(limit, _)| took <= *limit) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum += took;
    }

    pub(super) fn write(&self, page: &mut Page, name: &str, label: (&str, &str)) {
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().zip(&self.buckets) {
            below += count;
            let limit = Duration::from_millis(*bound).as_secs_f64().to_string();
            page.value(&bucket, &[label, ("le", &limit)], below);
        }
        page.value(&bucket, &[label, ("le", "+Inf")], self.count);
        page.value(&format!("{name}_sum"), &[label], self.sum.as_secs_f64());
        page.value(&format!("{name}_count"), &[label], self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let mut histogram = Histogram::default();
        for millis in [0, 1, 3, 60_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut page = Page::default();
        histogram.write(&mut page, "d", ("method", "m"));
        let has = |line: &str| page.text.lines().any(|have| have.ends_with(line));
        assert!(has(r#"d_bucket{method="m",le="0.001"} 2"#), "{}", page.text);
        assert!(has(r#"d_bucket{method="m",le="0.005"} 3"#));
        assert!(has(r#"d_bucket{method="m",le="30"} 3"#));
        assert!(has(r#"d_bucket{method="m",le="+Inf"} 4"#));
        assert!(has(r#"d_count{method="m"} 4"#));
    }
}
