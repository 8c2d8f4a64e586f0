//! Who starts next: two queues, one per priority, and the turns they take.
//!
//! Rules:
//! 1. Within a priority, rows start in the order of their arrival.
//! 2. An interactive row goes before a background one, even one that came earlier: it overtakes it.
//! 3. After [`OVERTAKES_MAX`] overtakes in a row the next start is a background row's. So of any
//!    `OVERTAKES_MAX + 1` starts in a row at least one is no overtake, and a background row with `k`
//!    others of its kind ahead is overtaken `(k + 1) * OVERTAKES_MAX` times at most.
//! 4. A *strict* queue (`--batch 1`) has no priorities: rows start in the order of their arrival.
//!
//! The queue only orders. Whether the first row may start now is [`plan`](super::plan)'s decision, and
//! a first row that may not holds everybody behind it, whatever their priority: so nobody waits for
//! longer than it takes those in front of them to start, and each of them starts, because live rows end.

use std::collections::VecDeque;

use super::row::Priority;
use crate::limits::OVERTAKES_MAX;

/// A row's place in the order of arrival, unique for the scheduler's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowNumber(pub(super) u64);

/// What the queue must know of a row.
pub(super) trait Queued {
    /// Its place in the order of arrival.
    fn number(&self) -> RowNumber;

    /// Its class.
    fn priority(&self) -> Priority;
}

/// The rows that wait to start.
#[derive(Debug)]
pub(super) struct Queue<T> {
    interactive: VecDeque<T>,
    background: VecDeque<T>,
    turns: Turns,
}

/// The memory of rule 3.
#[derive(Debug, Clone, Copy)]
struct Turns {
    strict: bool,
    /// Overtakes since a background row last started.
    overtakes: usize,
}

impl<T: Queued> Queue<T> {
    /// An empty queue.
    pub(super) fn new(strict: bool) -> Self {
        let turns = Turns { strict, overtakes: 0 };
        Self { interactive: VecDeque::new(), background: VecDeque::new(), turns }
    }

    /// Adds a row that arrived after all others.
    pub(super) fn push(&mut self, row: T) {
        self.class(row.priority()).push_back(row);
    }

    /// Rows that wait.
    pub(super) fn len(&self) -> usize {
        self.interactive.len() + self.background.len()
    }

    /// The rows in the order in which they start if nobody else arrives.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = &T> {
        let mut turns = self.turns;
        let (mut interactive, mut background) =
            (self.interactive.iter().peekable(), self.background.iter().peekable());
        std::iter::from_fn(move || {
            let number = |row: Option<&&T>| row.map(|row| row.number());
            match turns.take(number(interactive.peek()), number(background.peek()))? {
                Priority::Interactive => interactive.next(),
                Priority::Background => background.next(),
            }
        })
    }

    /// Takes out the first row of [`Queue::in_turn`].
    pub(super) fn pop(&mut self) -> Option<T> {
        let number = |rows: &VecDeque<T>| rows.front().map(Queued::number);
        let priority = self.turns.take(number(&self.interactive), number(&self.background))?;
        self.class(priority).pop_front()
    }

    /// Takes out the rows that `left` picks, in no particular order.
    pub(super) fn take_where(&mut self, left: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for rows in [&mut self.interactive, &mut self.background] {
            while let Some(index) = rows.iter().position(&left) {
                taken.extend(rows.remove(index));
            }
        }
        taken
    }

    /// Whether each class lists its rows in the order of arrival.
    pub(super) fn is_in_order(&self) -> bool {
        [&self.interactive, &self.background]
            .iter()
            .all(|rows| rows.iter().is_sorted_by_key(Queued::number))
    }

    fn class(&mut self, priority: Priority) -> &mut VecDeque<T> {
        match priority {
            Priority::Interactive => &mut self.interactive,
            Priority::Background => &mut self.background,
        }
    }
}

impl Turns {
    /// Whose turn it is, given the first rows of both classes; `None` when nobody waits.
    fn take(
        &mut self,
        interactive: Option<RowNumber>,
        background: Option<RowNumber>,
    ) -> Option<Priority> {
        match (interactive, background) {
            (None, None) => None,
            (Some(_), None) => Some(Priority::Interactive),
            (Some(interactive), Some(background)) if interactive < background => {
                Some(Priority::Interactive)
            }
            (Some(_), Some(_)) if !self.strict && self.overtakes < OVERTAKES_MAX => {
                self.overtakes += 1;
                Some(Priority::Interactive)
            }
            (_, Some(_)) => {
                self.overtakes = 0;
                Some(Priority::Background)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row by its place in the order of arrival and the first letter of its priority.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Waiter(u64, char);

    impl Queued for Waiter {
        fn number(&self) -> RowNumber {
            RowNumber(self.0)
        }

        fn priority(&self) -> Priority {
            if self.1 == 'i' { Priority::Interactive } else { Priority::Background }
        }
    }

    fn queue(strict: bool, arrivals: &str) -> Queue<Waiter> {
        let mut queue = Queue::new(strict);
        for (number, class) in arrivals.chars().enumerate() {
            queue.push(Waiter(number as u64, class));
        }
        queue
    }

    /// Rows arrive by the letters of their priorities, and start by their numbers.
    #[track_caller]
    fn check(strict: bool, arrivals: &str, starts: &[u64]) {
        let mut queue = queue(strict, arrivals);
        let shown: Vec<u64> = queue.in_turn().map(|row| row.0).collect();
        let taken: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|row| row.0).collect();
        assert_eq!((shown.as_slice(), taken.as_slice()), (starts, starts), "{arrivals}");
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn one_class_is_first_come_first_served() {
        check(false, "", &[]);
        check(false, "iii", &[0, 1, 2]);
        check(false, "bbb", &[0, 1, 2]);
    }

    #[test]
    fn interactive_rows_go_first_and_an_earlier_one_overtakes_nobody() {
        check(false, "bi", &[1, 0]);
        check(false, "ibib", &[0, 2, 1, 3]);
        check(false, "iiiiiib", &[0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn after_four_overtakes_a_background_row_starts() {
        check(false, "biiiiii", &[1, 2, 3, 4, 0, 5, 6]);
        check(false, "bbiiiiiiiiii", &[2, 3, 4, 5, 0, 6, 7, 8, 9, 1, 10, 11]);
    }

    #[test]
    fn a_strict_queue_has_one_order() {
        check(true, "bibbi", &[0, 1, 2, 3, 4]);
    }

    #[test]
    fn overtakes_are_counted_across_arrivals() {
        let mut queue = queue(false, "b");
        let mut starts = Vec::new();
        for number in 1..=10 {
            queue.push(Waiter(number, 'i'));
            starts.extend(queue.pop().map(|row| row.0));
        }
        assert_eq!(starts[..6], [1, 2, 3, 4, 0, 5]);
    }

    #[test]
    fn who_leaves_is_taken_out_of_both_classes_and_the_others_keep_their_order() {
        let mut queue = queue(false, "bibibi");
        let mut gone: Vec<u64> =
            queue.take_where(|row| row.0 < 3).iter().map(|row| row.0).collect();
        gone.sort_unstable();
        assert_eq!(gone, [0, 1, 2]);
        assert!(queue.is_in_order());
        assert_eq!(queue.in_turn().map(|row| row.0).collect::<Vec<_>>(), [3, 5, 4]);
    }

    #[test]
    fn no_background_row_is_overtaken_more_often_than_its_bound() {
        for seed in 0..64u64 {
            let class = |number: u64| {
                if (seed >> (number % 6)) & 1 == 1 { 'i' } else { 'b' }
            };
            let arrivals: String = (0..200).map(class).collect();
            let mut queue = queue(false, &arrivals);
            let starts: Vec<Waiter> = std::iter::from_fn(|| queue.pop()).collect();
            for (place, row) in starts.iter().enumerate().filter(|(_, row)| row.1 == 'b') {
                let before = |other: &&Waiter| other.1 == 'b' && other.0 < row.0;
                let ahead = starts.iter().filter(before).count();
                let overtakes = starts[..place].iter().filter(|other| other.0 > row.0).count();
                assert!(overtakes <= (ahead + 1) * OVERTAKES_MAX, "{arrivals}: row {}", row.0);
            }
        }
    }
}
