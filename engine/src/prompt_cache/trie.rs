//! Which kept sequence of tokens shares most with a prompt: a radix trie.
//!
//! Edges carry runs of tokens, so a prompt of `n` tokens is compared with at most `n` of them, however many
//! entries there are. A node counts the entries at and below it that can be trimmed, so that one of them is
//! found without a search.

use std::collections::HashMap;

/// Where an entry is.
pub(super) type Number = u64;

/// The root, which has no edge and is never removed.
const ROOT: usize = 0;

/// See the module's words.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// Places of removed nodes.
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Node {
    /// The tokens that lead here from the parent.
    edge: Vec<u32>,
    children: HashMap<u32, usize>,
    entry: Option<Held>,
    /// Entries here and below that can be trimmed.
    trimmable: usize,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    id: Number,
    can_trim: bool,
}

/// An entry that serves a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: Number,
    /// Tokens of the prompt that it spares.
    pub(super) usable_tokens: usize,
}

/// What the trie knows of a prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    /// The entry with the longest usable prefix; one that need not be trimmed where two have the same.
    pub(super) found: Option<Found>,
    /// An entry that goes on behind the tokens that it shares with the prompt, where no other shares more, and
    /// how many these are.
    pub(super) near: Option<(Number, usize)>,
}

/// How a prompt ran through the trie.
struct Walk {
    /// Nodes that the prompt passed, and their depths; the root first.
    passed: Vec<(usize, usize)>,
    /// The node on whose edge it stopped, if it stopped on one.
    stopped_on: Option<usize>,
    /// Tokens in common with some entry.
    shared_tokens: usize,
}

impl Trie {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::default()], free: Vec::new() }
    }

    /// Adds `id` under `tokens`, where no entry is.
    pub(super) fn insert(&mut self, tokens: &[u32], id: Number, can_trim: bool) {
        let mut node = ROOT;
        let mut rest = tokens;
        loop {
            self.nodes[node].trimmable += usize::from(can_trim);
            let Some(first) = rest.first() else { break };
            node = match self.nodes[node].children.get(first).copied() {
                None => {
                    let leaf = self.new_node(rest.to_vec());
                    self.nodes[node].children.insert(*first, leaf);
                    rest = &[];
                    leaf
                }
                Some(child) => {
                    let common = common_tokens(&self.nodes[child].edge, rest);
                    rest = &rest[common..];
                    if common < self.nodes[child].edge.len() {
                        self.split(node, child, common)
                    } else {
                        child
                    }
                }
            };
        }
        self.nodes[node].entry = Some(Held { id, can_trim });
    }

    /// Takes out the entry under `tokens`.
    pub(super) fn remove(&mut self, tokens: &[u32]) {
        let walk = self.walk(tokens);
        let Some((last, depth)) = walk.passed.last().copied() else { return };
        let Some(held) = self.nodes[last].entry.filter(|_| depth == tokens.len()) else { return };
        self.nodes[last].entry = None;
        for (node, _) in &walk.passed {
            self.nodes[*node].trimmable -= usize::from(held.can_trim);
        }
        self.prune(&walk.passed);
    }

    /// The entry under just these tokens.
    pub(super) fn entry_at(&self, tokens: &[u32]) -> Option<Number> {
        let (last, depth) = *self.walk(tokens).passed.last()?;
        self.nodes[last].entry.filter(|_| depth == tokens.len()).map(|held| held.id)
    }

    /// The entries under proper prefixes of `tokens`.
    pub(super) fn prefixes(&self, tokens: &[u32]) -> Vec<Number> {
        let passed = self.walk(tokens).passed.into_iter();
        let proper = passed.filter(|(_, depth)| *depth < tokens.len());
        proper.filter_map(|(node, _)| self.nodes[node].entry.map(|held| held.id)).collect()
    }

    /// What there is for `prompt`, of which at most all tokens but the last can be spared.
    pub(super) fn look_up(&self, prompt: &[u32]) -> Lookup {
        let walk = self.walk(prompt);
        let most = prompt.len().saturating_sub(1);
        let exact = self.exact(&walk, most);
        let trimmed = self.trimmed(&walk, most);
        let found = [exact, trimmed].into_iter().flatten().filter(|found| found.usable_tokens > 0);
        // Of two that are equally long the first one stays.
        let found =
            found.reduce(
                |best, other| {
                    if other.usable_tokens > best.usable_tokens { other } else { best }
                },
            );
        Lookup { found, near: self.near(&walk).map(|id| (id, walk.shared_tokens)) }
    }

    /// The longest entry that is a prefix of the prompt and leaves a token to run.
    fn exact(&self, walk: &Walk, most: usize) -> Option<Found> {
        walk.passed.iter().rev().find_map(|(node, depth)| {
            let held = self.nodes[*node].entry.filter(|_| *depth <= most)?;
            Some(Found { id: held.id, usable_tokens: *depth })
        })
    }

    /// An entry that can be trimmed to the longest usable prefix.
    fn trimmed(&self, walk: &Walk, most: usize) -> Option<Found> {
        let stopped = walk.stopped_on.map(|node| (node, walk.shared_tokens));
        let places = stopped.into_iter().chain(walk.passed.iter().rev().copied());
        let place = places.into_iter().find(|(node, _)| self.nodes[*node].trimmable > 0);
        let (node, depth) = place?;
        let id = self.descend(node, |node| node.trimmable > 0, |held| held.can_trim)?;
        Some(Found { id, usable_tokens: depth.min(most) })
    }

    /// An entry that goes on where the walk ended.
    fn near(&self, walk: &Walk) -> Option<Number> {
        let (last, _) = *walk.passed.last()?;
        let place =
            walk.stopped_on.or_else(|| self.nodes[last].children.values().min().copied())?;
        self.descend(place, |_| true, |_| true)
    }

    /// The first entry at or below `node` that `fits`, through children that `lead` to one.
    fn descend(
        &self,
        mut node: usize,
        leads: impl Fn(&Node) -> bool,
        fits: impl Fn(&Held) -> bool,
    ) -> Option<Number> {
        loop {
            if let Some(held) = self.nodes[node].entry.filter(&fits) {
                return Some(held.id);
            }
            let children = self.nodes[node].children.values().copied();
            node = children.filter(|child| leads(&self.nodes[*child])).min()?;
        }
    }

    fn walk(&self, tokens: &[u32]) -> Walk {
        let mut walk = Walk { passed: vec![(ROOT, 0)], stopped_on: None, shared_tokens: 0 };
        let mut node = ROOT;
        while let Some(child) = tokens
            .get(walk.shared_tokens)
            .and_then(|token| self.nodes[node].children.get(token).copied())
        {
            let edge = &self.nodes[child].edge;
            let common = common_tokens(edge, &tokens[walk.shared_tokens..]);
            walk.shared_tokens += common;
            if common < edge.len() {
                walk.stopped_on = Some(child);
                break;
            }
            node = child;
            walk.passed.push((node, walk.shared_tokens));
        }
        walk
    }

    /// Puts a node in the middle of the edge from `parent` to `child`, `at` tokens down.
    fn split(&mut self, parent: usize, child: usize, at: usize) -> usize {
        let below = self.nodes[child].edge.split_off(at);
        let above = std::mem::replace(&mut self.nodes[child].edge, below);
        let (first, next) = (above[0], self.nodes[child].edge[0]);
        let middle = self.new_node(above);
        self.nodes[middle].trimmable = self.nodes[child].trimmable;
        self.nodes[middle].children.insert(next, child);
        self.nodes[parent].children.insert(first, middle);
        middle
    }

    /// Removes the nodes at the end of `passed` that lead to no entry any more.
    fn prune(&mut self, passed: &[(usize, usize)]) {
        for pair in passed.windows(2).rev() {
            let [(parent, _), (node, _)] = *pair else { return };
            if self.nodes[node].entry.is_some() || !self.nodes[node].children.is_empty() {
                return;
            }
            let first = self.nodes[node].edge[0];
            self.nodes[parent].children.remove(&first);
            self.nodes[node] = Node::default();
            self.free.push(node);
        }
    }

    fn new_node(&mut self, edge: Vec<u32>) -> usize {
        let node = Node { edge, ..Node::default() };
        match self.free.pop() {
            Some(place) => {
                self.nodes[place] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    /// How many nodes there are, the root included.
    #[cfg(test)]
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
}

fn common_tokens(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}
