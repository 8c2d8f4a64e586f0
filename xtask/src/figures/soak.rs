//! What an idle server held as requests went by.

use super::{median, slope};

/// One look after another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Soak {
    pub(crate) points: Vec<SoakPoint>,
}

/// One look at an idle server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SoakPoint {
    /// Answered or left before.
    pub(crate) requests: usize,
    pub(crate) active_bytes: u64,
    pub(crate) weights_bytes: u64,
    pub(crate) resident_bytes: u64,
}

impl Soak {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut lines =
            vec!["idle after  arrays beyond weights, MB  resident memory, MB".to_owned()];
        lines.extend(self.points.iter().map(|point| {
            let (beyond, resident) = (point.beyond_bytes() / 1e6, point.resident() / 1e6);
            format!("{:>10}  {beyond:>25.2}  {resident:>19.1}", point.requests)
        }));
        lines.push(self.slopes());
        lines.join("\n")
    }

    /// Growth per request. The first look is left out: the server had not answered anything yet, and
    /// had none of the buffers that it keeps.
    fn slopes(&self) -> String {
        let warm = self.points.get(1..).unwrap_or_default();
        let per_request = |bytes: fn(&SoakPoint) -> f64| {
            slope(warm.iter().map(|point| (point.requests as f64, bytes(point))))
        };
        format!(
            "slope from {} requests on: arrays {:.1} bytes per request, resident memory {:.1} bytes \
             per request (of {:.0} MB)",
            warm.first().map_or(0, |point| point.requests),
            per_request(SoakPoint::beyond_bytes),
            per_request(SoakPoint::resident),
            median(&warm.iter().map(SoakPoint::resident).collect::<Vec<f64>>()) / 1e6,
        )
    }
}

impl SoakPoint {
    /// Bytes of arrays that are not weights.
    fn beyond_bytes(&self) -> f64 {
        self.active_bytes as f64 - self.weights_bytes as f64
    }

    fn resident(&self) -> f64 {
        self.resident_bytes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_leave_out_the_server_that_had_not_served_yet() {
        let point = |requests, active_bytes, resident_bytes| SoakPoint {
            requests,
            active_bytes,
            weights_bytes: 100,
            resident_bytes,
        };
        let points = vec![point(0, 7, 7), point(10, 200, 3000), point(20, 200, 3100)];
        let said = Soak { points }.slopes();
        let expected = "from 10 requests on: arrays 0.0 bytes per request, resident memory 10.0";
        assert!(said.contains(expected), "{said}");
    }
}
