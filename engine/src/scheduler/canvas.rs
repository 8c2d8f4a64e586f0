//! A canvas as the host sees it: which tokens stand where, which places are accepted, when it is
//! finished. Pure decisions; the forwards are `blocks.rs`'s.

use std::collections::VecDeque;

use crate::error::Result;
use crate::model::{Acceptance, Denoising, EarlyEnd};

/// A canvas under construction.
#[derive(Debug)]
pub(super) struct Canvas {
    tokens: Vec<u32>,
    /// With [`Acceptance::Confident`], the places that stay.
    kept: Vec<bool>,
    /// What the last forwards found most likely, as many as [`EarlyEnd`] compares.
    past: VecDeque<Vec<u32>>,
    forwards: u32,
}

/// What a forward found, a number for each place.
pub(super) struct Finding<'forward> {
    /// The token that is proposed.
    pub(super) proposed: &'forward [u32],
    /// How sure that is, in the terms of the [`Acceptance`].
    pub(super) measure: Measure,
}

/// What acceptance goes by.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Measure {
    /// Entropies in nats.
    Entropies(Vec<f32>),
    /// The proposed tokens' probabilities.
    Probabilities(Vec<f32>),
}

impl Canvas {
    /// A canvas of noise.
    pub(super) fn new(noise: Vec<u32>) -> Self {
        Self { kept: vec![false; noise.len()], tokens: noise, past: VecDeque::new(), forwards: 0 }
    }

    /// What the next forward is to see.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forwards so far.
    pub(super) fn forwards(&self) -> u32 {
        self.forwards
    }

    /// Whether the next forward is the last that it may have: nothing is accepted after it.
    pub(super) fn is_at_last(&self, denoising: &Denoising) -> bool {
        self.forwards + 1 >= denoising.forwards_max
    }

    /// Accepts places, fills the others with `noise`, and returns the places that were accepted now.
    pub(super) fn accept(
        &mut self,
        finding: &Finding<'_>,
        rule: Acceptance,
        noise: &[u32],
    ) -> Vec<usize> {
        self.forwards += 1;
        let accepted = match (rule, &finding.measure) {
            (Acceptance::EntropyBound(bound), Measure::Entropies(entropies)) => {
                self.kept.fill(false);
                lowest_within(entropies, bound)
            }
            (Acceptance::Confident(least), Measure::Probabilities(probabilities)) => {
                confident(probabilities, &self.kept, least)
            }
            (Acceptance::EntropyBound(_) | Acceptance::Confident(_), _) => {
                unreachable!("the rule's own measure is taken")
            }
        };
        for place in &accepted {
            self.tokens[*place] = finding.proposed[*place];
            self.kept[*place] = true;
        }
        for (place, token) in noise.iter().enumerate().filter(|(place, _)| !self.kept[*place]) {
            self.tokens[place] = *token;
        }
        accepted
    }

    /// Whether the forward whose findings were accepted was the last after all. `mean_entropy` is asked
    /// when it matters.
    pub(super) fn is_finished(
        &mut self,
        best: &[u32],
        denoising: &Denoising,
        mean_entropy: impl FnOnce() -> Result<f32>,
    ) -> Result<bool> {
        let sticky = matches!(denoising.acceptance, Acceptance::Confident(_));
        if sticky && self.kept.iter().all(|kept| *kept) {
            return Ok(true);
        }
        match denoising.early_end {
            Some(end) if self.is_stable(best, end) => Ok(mean_entropy()? < end.mean_entropy_below),
            Some(_) | None => Ok(false),
        }
    }

    /// Whether `best` is what the last forwards found, and remembers it.
    fn is_stable(&mut self, best: &[u32], end: EarlyEnd) -> bool {
        let compared = self.past.len() == end.stable_forwards;
        let stable = compared && self.past.iter().all(|past| past == best);
        self.past.push_back(best.to_vec());
        if self.past.len() > end.stable_forwards {
            self.past.pop_front();
        }
        stable
    }
}

/// The places of the lowest entropies, ascending by place, of which those before each sum to at most
/// `bound`.
fn lowest_within(entropies: &[f32], bound: f32) -> Vec<usize> {
    let mut places: Vec<usize> = (0..entropies.len()).collect();
    places.sort_by(|left, right| entropies[*left].total_cmp(&entropies[*right]));
    let mut before = 0.0;
    places.retain(|place| {
        let fits = before <= bound;
        before += entropies[*place];
        fits
    });
    places.sort_unstable();
    places
}

/// The places, not `kept` yet, whose probability is at least `least`, or else the first of the most
/// probable ones.
fn confident(probabilities: &[f32], kept: &[bool], least: f32) -> Vec<usize> {
    let open: Vec<usize> = (0..kept.len()).filter(|place| !kept[*place]).collect();
    let sure: Vec<usize> =
        open.iter().copied().filter(|place| probabilities[*place] >= least).collect();
    if !sure.is_empty() {
        return sure;
    }
    // `max_by` takes the last of equals, so the places go backwards.
    let best = open.into_iter().rev();
    best.max_by(|left, right| probabilities[*left].total_cmp(&probabilities[*right]))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CanvasLength, TemperatureSlope};

    const NOISE: [u32; 4] = [90, 91, 92, 93];

    fn denoising(acceptance: Acceptance, early_end: Option<EarlyEnd>) -> Denoising {
        Denoising {
            canvas: CanvasLength { least_tokens: 4, most_tokens: 4 },
            forwards_max: 3,
            temperature: TemperatureSlope { least: 1.0, most: 1.0 },
            acceptance,
            early_end,
        }
    }

    fn finding(measure: Measure) -> Finding<'static> {
        Finding { proposed: &[20, 21, 22, 23], measure }
    }

    #[test]
    fn the_lowest_entropies_are_accepted_while_those_before_them_fit_the_bound() {
        let entropies = [0.5, 0.1, 0.3, 0.2];
        for (bound, places) in [
            (0.0, vec![1]),
            (0.09, vec![1]),
            (0.1, vec![1, 3]),
            (0.31, vec![1, 2, 3]),
            (0.61, vec![0, 1, 2, 3]),
        ] {
            assert_eq!(lowest_within(&entropies, bound), places, "{bound}");
        }
    }

    #[test]
    fn confident_places_are_accepted_and_the_best_one_when_there_is_none() {
        let probabilities = [0.5, 0.9, 0.5, 0.95];
        let none = [false; 4];
        assert_eq!(confident(&probabilities, &none, 0.9), [1, 3]);
        assert_eq!(confident(&probabilities, &none, 0.99), [3]);
        assert_eq!(confident(&probabilities, &[false, true, false, true], 0.9), [0], "the first");
        assert_eq!(confident(&probabilities, &[true; 4], 0.9), [0; 0]);
    }

    #[test]
    fn what_is_accepted_by_entropy_may_be_taken_back_and_what_is_confident_stays() {
        let mut canvas = Canvas::new(vec![1, 2, 3, 4]);
        let rule = Acceptance::EntropyBound(0.0);
        let first = finding(Measure::Entropies(vec![0.5, 0.1, 0.3, 0.2]));
        assert_eq!(canvas.accept(&first, rule, &NOISE), [1]);
        assert_eq!(canvas.tokens(), [90, 21, 92, 93]);
        let second = finding(Measure::Entropies(vec![0.1, 0.5, 0.3, 0.2]));
        assert_eq!(canvas.accept(&second, rule, &NOISE), [0]);
        assert_eq!(canvas.tokens(), [20, 91, 92, 93]);

        let mut canvas = Canvas::new(vec![1, 2, 3, 4]);
        let rule = Acceptance::Confident(0.9);
        let first = finding(Measure::Probabilities(vec![0.0, 0.9, 0.0, 0.0]));
        assert_eq!(canvas.accept(&first, rule, &NOISE), [1]);
        let other = Finding {
            proposed: &[30, 31, 32, 33],
            ..finding(Measure::Probabilities(vec![0.9, 0.9, 0.0, 0.0]))
        };
        assert_eq!(canvas.accept(&other, rule, &NOISE), [0]);
        assert_eq!(canvas.tokens(), [30, 21, 92, 93]);
        assert_eq!(canvas.forwards(), 2);
    }

    #[test]
    fn a_canvas_is_finished_when_all_places_are_kept_and_no_entropy_is_asked_for() {
        let rules = denoising(Acceptance::Confident(0.0), None);
        let mut canvas = Canvas::new(vec![1, 2, 3, 4]);
        canvas.accept(&finding(Measure::Probabilities(vec![0.5; 4])), rules.acceptance, &NOISE);
        assert!(canvas.is_finished(&[0; 4], &rules, || panic!("not asked")).unwrap());

        let rules = denoising(Acceptance::EntropyBound(9.0), None);
        let mut canvas = Canvas::new(vec![1, 2, 3, 4]);
        canvas.accept(&finding(Measure::Entropies(vec![0.5; 4])), rules.acceptance, &NOISE);
        let finished = canvas.is_finished(&[0; 4], &rules, || panic!("not asked"));
        assert!(!finished.unwrap(), "accepted by entropy is not kept");
    }

    #[test]
    fn a_canvas_is_finished_once_it_is_stable_and_sure() {
        let end = |stable_forwards| EarlyEnd { stable_forwards, mean_entropy_below: 0.5 };
        let check = |stable_forwards, forwards: &[(u32, f32, bool)]| {
            let early_end = Some(end(stable_forwards));
            let rules = denoising(Acceptance::EntropyBound(0.0), early_end);
            let mut canvas = Canvas::new(vec![1]);
            for (best, entropy, expected) in forwards {
                let finished = canvas.is_finished(&[*best], &rules, || Ok(*entropy)).unwrap();
                assert_eq!(finished, *expected, "{stable_forwards}: {best} and {entropy}");
            }
        };
        check(0, &[(1, 0.5, false), (2, 0.4, true)]);
        check(1, &[(1, 0.1, false), (2, 0.1, false), (2, 0.9, false), (2, 0.1, true)]);
        check(2, &[(1, 0.1, false), (1, 0.1, false), (1, 0.1, true)]);
    }

    #[test]
    fn the_last_forward_is_known_before_it_runs() {
        let rules = denoising(Acceptance::EntropyBound(0.0), None);
        let mut canvas = Canvas::new(vec![1, 2, 3, 4]);
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(canvas.is_at_last(&rules));
            canvas.accept(&finding(Measure::Entropies(vec![0.0; 4])), rules.acceptance, &NOISE);
        }
        assert_eq!(seen, [false, false, true]);
    }
}
