//! What an executor shows of its rows' logits.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use slipstream_engine::mlx::ops;
use slipstream_engine::scheduler::MlxExecutor;

/// By a row's id, the logits that each of its tokens was taken from, in their order; those of a forward in flight
/// when the row ended, which are nobody's, come last.
pub type Logits = HashMap<String, Vec<Vec<f32>>>;

/// Files what `executor` computes from now on.
///
/// # Panics
/// While the executor runs, when its logits cannot be read.
pub fn file(executor: &mut MlxExecutor) -> Rc<RefCell<Logits>> {
    let seen = Rc::new(RefCell::new(Logits::new()));
    let filed = Rc::clone(&seen);
    executor.observe_logits(Box::new(move |rows, logits| {
        let values = ops::read_f32(logits).expect("logits are numbers");
        let vocabulary = values.len() / rows.len();
        for (row, values) in rows.iter().zip(values.chunks(vocabulary)) {
            filed.borrow_mut().entry((*row).to_owned()).or_default().push(values.to_vec());
        }
    }));
    seen
}
