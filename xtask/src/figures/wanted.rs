//! A figure beside what is wanted.

/// A figure, and below what it is wanted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) measured: f64,
    pub(super) wanted: f64,
    pub(super) unit: &'static str,
}

impl Wanted {
    pub(super) fn new(
        name: impl Into<String>,
        measured: f64,
        wanted: f64,
        unit: &'static str,
    ) -> Self {
        Self { name: name.into(), measured, wanted, unit }
    }

    /// What stands over the lines.
    pub(super) fn head() -> String {
        format!("{:<52} {:>9} {:>9}", "", "measured", "wanted")
    }

    /// Marked if it is not below.
    pub(super) fn line(&self) -> String {
        let Self { name, measured, wanted, unit } = self;
        let missed = if measured < wanted { "" } else { "  MISSED" };
        format!("{name:<52} {measured:>6.3} {unit} {:>9}{missed}", format!("< {wanted} {unit}"))
    }
}
