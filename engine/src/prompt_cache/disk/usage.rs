//! The account of what was written to a folder: today, and in all.
//!
//! It is entered before the bytes are written and corrected when fewer were, so whenever the process
//! ends, the account says too much rather than too little. Processes that share a folder change it under
//! the folder's lock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// A day, counted from the Unix epoch in UTC.
pub(super) fn day(unix_time: Duration) -> u64 {
    unix_time.as_secs() / (24 * 60 * 60)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    version: u32,
    /// The day of `day_bytes`.
    day: u64,
    day_bytes: u64,
    /// Bytes written since the folder was made.
    pub total_bytes: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self { version: VERSION, day: 0, day_bytes: 0, total_bytes: 0 }
    }
}

impl Usage {
    /// Reads an account; none if `json` is not one of this version.
    pub(super) fn parse(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().filter(|usage: &Self| usage.version == VERSION)
    }

    pub(super) fn to_json(self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&self)
    }

    pub(super) fn written_on(&self, day: u64) -> u64 {
        if self.day == day { self.day_bytes } else { 0 }
    }

    /// Whether `bytes` more may be written on `day`.
    pub(super) fn allows(&self, bytes: u64, day: u64, limit: Option<u64>) -> bool {
        limit.is_none_or(|limit| self.written_on(day).saturating_add(bytes) <= limit)
    }

    /// Enters `bytes` that will be written on `day`.
    pub(super) fn enter(&mut self, bytes: u64, day: u64) {
        self.day_bytes = self.written_on(day).saturating_add(bytes);
        self.day = day;
        self.total_bytes = self.total_bytes.saturating_add(bytes);
    }

    /// Takes back `bytes` that were entered on `day` and not written.
    pub(super) fn take_back(&mut self, bytes: u64, day: u64) {
        if self.day == day {
            self.day_bytes = self.day_bytes.saturating_sub(bytes);
        }
        self.total_bytes = self.total_bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_day_ends_at_midnight() {
        let midnight = Duration::from_secs(86_400 * 20_000);
        assert_eq!((day(midnight - SECOND), day(midnight)), (19_999, 20_000));
    }

    #[test]
    fn the_day_is_counted_anew_and_the_total_goes_on() {
        let mut usage = Usage::default();
        usage.enter(70, 5);
        assert!(usage.allows(30, 5, Some(100)) && !usage.allows(31, 5, Some(100)));
        assert!(usage.allows(u64::MAX, 5, None) && !usage.allows(u64::MAX, 5, Some(100)));
        assert!(usage.allows(100, 6, Some(100)));
        usage.enter(10, 6);
        assert_eq!((usage.written_on(5), usage.written_on(6), usage.total_bytes), (0, 10, 80));
        usage.take_back(50, 5);
        assert_eq!((usage.written_on(6), usage.total_bytes), (10, 30));
    }

    #[test]
    fn only_an_account_of_this_version_is_read() {
        let usage = Usage { version: VERSION, day: 3, day_bytes: 4, total_bytes: u64::MAX };
        assert_eq!(Usage::parse(&usage.to_json().unwrap()), Some(usage));
        let newer = Usage { version: VERSION + 1, ..usage };
        assert_eq!(Usage::parse(&newer.to_json().unwrap()), None);
        assert_eq!(Usage::parse(b""), None);
    }
}
