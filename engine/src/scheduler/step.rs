//! The decode step: one forward pass for all rows, read one step late.
//!
//! The executor dispatches step `n + 1` before it reads step `n`, so that the device never waits for
//! us. A token therefore arrives one tick after its step was dispatched.
//!
//! An error here cannot be blamed on a row: it fails the whole batch, and the queue goes on.

use super::plan::{self, Decode};
use super::rows::Row;
use super::{Executor, Said, Scheduler, Stepped, Yield};
use crate::error::{Code, Error, Result};

impl<E: Executor> Scheduler<E> {
    /// Runs the decode step that the rows need, if any.
    pub(super) fn decode(&mut self) {
        match plan::decode(self.in_flight, self.running.iter().map(Row::left_tokens)) {
            Decode::Rest => {}
            Decode::Step => {
                self.step();
                if self.config.levers.no_pipeline {
                    self.settle();
                }
            }
            Decode::Flush => self.settle(),
        }
        if self.running.is_empty() {
            self.heard_at = None;
        }
    }

    /// Reads and emits the step in flight, so that the set of rows can change.
    pub(super) fn settle(&mut self) {
        if !self.in_flight {
            return;
        }
        let said = self.executor.flush();
        match said.and_then(|said| self.one_token_per_row(said)) {
            Ok(said) => {
                self.in_flight = false;
                self.emit(said);
            }
            Err(error) => self.fail_batch("flush", &error),
        }
    }

    fn step(&mut self) {
        let began = self.clock.now();
        let stepped = self.executor.step(&self.clock);
        let stepped = stepped.and_then(|stepped| self.check(stepped));
        match stepped {
            Ok(Stepped { said, dispatching, waited }) => {
                self.note_progress();
                self.totals.decode_steps += 1;
                self.totals.peak_rows = self.totals.peak_rows.max(self.running.len());
                match self.executor.yields() {
                    Yield::TokenPerStep => {
                        self.in_flight = true;
                        self.emit(said);
                    }
                    Yield::Blocks => self.emit_block(said),
                }
                let took = self.clock.now().saturating_sub(began);
                self.steps.note_host(took.saturating_sub(waited), dispatching);
            }
            Err(error) => self.fail_batch("step", &error),
        }
    }

    /// Fails every row of the batch after `attempt` did, and drops the batch.
    pub(super) fn fail_batch(&mut self, attempt: &str, error: &Error) {
        let rows = std::mem::take(&mut self.running);
        tracing::error!(attempt, rows = rows.len(), %error, "the batch failed");
        let message = format!("batch {attempt} failed with {} rows: {}", rows.len(), error);
        for row in rows {
            self.fail(row, Error::new(Code::EngineFailed, message.clone()));
        }
        self.executor.reset();
        self.in_flight = false;
    }

    fn check(&self, stepped: Stepped) -> Result<Stepped> {
        match self.executor.yields() {
            Yield::TokenPerStep => {
                Ok(Stepped { said: self.one_token_per_row(stepped.said)?, ..stepped })
            }
            Yield::Blocks if self.running.len() == 1 => Ok(stepped),
            Yield::Blocks => {
                let message = format!("{} rows write one block", self.running.len());
                Err(Error::new(Code::Internal, message))
            }
        }
    }

    /// Holds the executor to its word: a token for each row if a step was in flight, else none.
    fn one_token_per_row(&self, said: Vec<Said>) -> Result<Vec<Said>> {
        let expected = if self.in_flight { self.running.len() } else { 0 };
        if said.len() == expected {
            return Ok(said);
        }
        let message = format!("{} tokens came back, expected {expected}", said.len());
        Err(Error::new(Code::Internal, message))
    }
}
