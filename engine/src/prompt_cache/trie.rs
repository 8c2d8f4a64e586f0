//! A radix tree of token sequences, which says what is stored of a prompt.
//!
//! An **edge** is the run of tokens that leads from a node's parent to it, never empty but at the root. A
//! node's **depth** counts the tokens from the root to the end of its edge. A **place** lies on an edge or
//! at its end. Tokens that entries share are stored once, so an entry's tokens are read off its path.
//!
//! Invariants: siblings' edges start with different tokens; a node other than the root has an entry or at
//! least two children, so whatever lies below a place begins with the tokens that lead there; a node that
//! has an entry keeps its id while it has it; every node knows the most recently used entry below itself, and
//! at or below itself of those that can be trimmed. That makes a look-up as long as the prompt, whatever
//! else is stored.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut, Range};

use super::entries::EntryId;
use super::recency::Stamp;

/// Names a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId(usize);

const ROOT: NodeId = NodeId(0);

/// An entry at a node, ordered by its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) stamp: Stamp,
    pub(super) id: EntryId,
    /// How many tokens it has.
    pub(super) tokens: usize,
    pub(super) can_trim: bool,
}

/// What the tree says of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// The most tokens that an entry has in common with the prompt.
    pub(super) shared: usize,
    /// Of the entries that have them the most recently used one that goes on behind them, else the one that
    /// ends with them; `None` when `shared` is 0.
    pub(super) nearest: Option<EntryId>,
    /// What serves it best.
    pub(super) serving: Option<Serving>,
}

/// An entry that serves a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Serving {
    pub(super) id: EntryId,
    /// Its usable prefix: never 0, and never the whole prompt.
    pub(super) usable: usize,
    /// Tokens that it has beyond those.
    pub(super) excess: usize,
}

impl Match {
    /// How many tokens serve.
    pub(super) fn usable(&self) -> usize {
        self.serving.map_or(0, |serving| serving.usable)
    }
}

/// A node: see the module's words.
#[derive(Debug)]
pub(super) struct Node {
    edge: Vec<u32>,
    depth: usize,
    parent: NodeId,
    /// By the first tokens of their edges.
    children: BTreeMap<u32, NodeId>,
    entry: Option<Mark>,
    newest: Newest,
}

/// The most recently used entries of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Newest {
    /// Below it.
    below: Option<Mark>,
    /// At or below it, of those that can be trimmed.
    of_trimmable: Option<Mark>,
}

/// A place on the edge of `node`, `depth` tokens from the root.
#[derive(Debug, Clone, Copy)]
struct Place {
    node: NodeId,
    depth: usize,
}

/// The tree.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// Nodes that are not in use.
    free: Vec<NodeId>,
}

impl Trie {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::new(ROOT, Vec::new(), 0)], free: Vec::new() }
    }

    /// What is stored of `prompt`.
    pub(super) fn look_up(&self, prompt: &[u32]) -> Match {
        let reached = self.reach(prompt);
        let usable = self.rise(reached, prompt.len().saturating_sub(1));
        Match {
            shared: reached.depth,
            nearest: self.nearest(reached).map(|mark| mark.id),
            serving: self.serving(usable),
        }
    }

    /// The entry of exactly `tokens`.
    pub(super) fn find(&self, tokens: &[u32]) -> Option<EntryId> {
        let place = self.reach(tokens);
        let node = &self[place.node];
        let whole = place.depth == tokens.len() && node.depth == place.depth;
        node.entry.filter(|_| whole).map(|mark| mark.id)
    }

    /// The entries whose tokens are some first ones of `tokens`, but not all.
    pub(super) fn prefixes(&self, tokens: &[u32]) -> Vec<EntryId> {
        let place = self.reach(tokens);
        let passed = self.upwards(place.node).filter(|node| {
            let depth = self[*node].depth;
            depth <= place.depth && depth < tokens.len()
        });
        passed.filter_map(|node| self[node].entry).map(|mark| mark.id).collect()
    }

    /// The tokens with the indices `range` on the way to `node`, whose depth it does not exceed.
    pub(super) fn tokens(&self, node: NodeId, range: Range<usize>) -> Vec<u32> {
        let mut tokens = vec![0; range.len()];
        for node in self.upwards(node) {
            let node = &self[node];
            let (from, to) = (node.start().max(range.start), node.depth.min(range.end));
            if from < to {
                let edge = &node.edge[from - node.start()..to - node.start()];
                tokens[from - range.start..to - range.start].copy_from_slice(edge);
            }
        }
        tokens
    }

    /// How many tokens lead to `node`.
    pub(super) fn depth(&self, node: NodeId) -> usize {
        self[node].depth
    }

    /// Adds an entry of `tokens`, which are not stored yet.
    pub(super) fn insert(&mut self, tokens: &[u32], mark: Mark) -> NodeId {
        let place = self.reach(tokens);
        let mut node = self.split(place);
        if place.depth < tokens.len() {
            node = self.add_child(node, tokens[place.depth..].to_vec());
        }
        debug_assert!(self[node].entry.is_none(), "what is stored is removed first");
        self.note(node, mark);
        node
    }

    /// Notes a use of the entry at `node`, later than all others.
    pub(super) fn touch(&mut self, node: NodeId, stamp: Stamp) {
        if let Some(mark) = self[node].entry {
            self.note(node, Mark { stamp, ..mark });
        }
    }

    /// Removes the entry at `node`.
    pub(super) fn remove(&mut self, node: NodeId) {
        let Some(mark) = self[node].entry.take() else {
            return;
        };
        self.forget(node, mark);
        self.prune(node);
    }

    /// The deepest place that `tokens` lead to.
    fn reach(&self, tokens: &[u32]) -> Place {
        let mut place = Place { node: ROOT, depth: 0 };
        while let Some(child) = self.child(place.node, &tokens[place.depth..]) {
            let edge = &self[child].edge;
            let shared = shared_tokens(edge, &tokens[place.depth..]);
            place = Place { node: child, depth: place.depth + shared };
            if shared < edge.len() {
                break;
            }
        }
        place
    }

    fn child(&self, node: NodeId, rest: &[u32]) -> Option<NodeId> {
        self[node].children.get(rest.first()?).copied()
    }

    /// The place on the way to `place` that is not deeper than `depth`.
    fn rise(&self, place: Place, depth: usize) -> Place {
        let node = self.upwards(place.node).find(|node| self[*node].start() < depth);
        Place { node: node.unwrap_or(ROOT), depth: place.depth.min(depth) }
    }

    /// What serves a prompt that leads to `place`: the entry that ends there, else the newest below that
    /// can be trimmed; if there is neither, the same from the next node above.
    fn serving(&self, place: Place) -> Option<Serving> {
        self.upwards(place.node).find_map(|id| {
            let node = &self[id];
            let usable = node.depth.min(place.depth);
            let exact = node.entry.filter(|mark| mark.tokens == usable);
            let mark = exact.or(node.newest.of_trimmable).filter(|_| usable > 0)?;
            Some(Serving { id: mark.id, usable, excess: mark.tokens - usable })
        })
    }

    /// The newest entry that goes on behind `place`, else the one that ends there.
    fn nearest(&self, place: Place) -> Option<Mark> {
        let node = &self[place.node];
        let ends_at_node = node.depth == place.depth;
        let nearest = if ends_at_node { node.newest.below.or(node.entry) } else { node.newest() };
        nearest.filter(|_| place.depth > 0)
    }

    /// Sets the entry at `node` to `mark`, the newest of all.
    fn note(&mut self, node: NodeId, mark: Mark) {
        self[node].entry = Some(mark);
        let path: Vec<NodeId> = self.upwards(node).collect();
        for passed in path {
            let newest = &mut self[passed].newest;
            newest.see_trimmable(mark);
            if passed != node {
                newest.below = Some(mark);
            }
        }
    }

    /// The nodes from `node` to the root, both included.
    fn upwards(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let parent = |node: &NodeId| (*node != ROOT).then(|| self[*node].parent);
        std::iter::successors(Some(node), parent)
    }

    /// The node at `place`, made by cutting an edge in two if there is none. What is below keeps its ids.
    fn split(&mut self, place: Place) -> NodeId {
        let Place { node: lower, depth } = place;
        if self[lower].depth == depth {
            return lower;
        }
        let (parent, start) = (self[lower].parent, self[lower].start());
        let rest = self[lower].edge.split_off(depth - start);
        let edge = std::mem::replace(&mut self[lower].edge, rest);
        let mut upper = Node::new(parent, edge, depth);
        upper.newest = Newest { below: self[lower].newest(), ..self[lower].newest };
        let upper = self.place(upper);
        self.adopt(parent, upper);
        self.adopt(upper, lower);
        upper
    }

    fn add_child(&mut self, parent: NodeId, edge: Vec<u32>) -> NodeId {
        let depth = self[parent].depth + edge.len();
        let child = self.place(Node::new(parent, edge, depth));
        self.adopt(parent, child);
        child
    }

    /// Makes `child` the child of `parent` that its edge begins with.
    fn adopt(&mut self, parent: NodeId, child: NodeId) {
        let first = self[child].edge[0];
        self[parent].children.insert(first, child);
        self[child].parent = parent;
    }

    /// Has the nodes from `node` upwards look for another newest entry than `gone`, which was there.
    fn forget(&mut self, node: NodeId, gone: Mark) {
        let path: Vec<NodeId> = self.upwards(node).collect();
        for passed in path {
            let named = self[passed].newest.names(gone);
            if !named && passed != node {
                // Then it is not the newest further up either.
                return;
            }
            if named {
                self[passed].newest = self.newest(passed);
            }
        }
    }

    fn newest(&self, node: NodeId) -> Newest {
        let mut newest = Newest::default();
        self[node].entry.into_iter().for_each(|mark| newest.see_trimmable(mark));
        for child in self[node].children.values() {
            let child = &self[*child];
            newest.below = newest.below.max(child.newest());
            child.newest.of_trimmable.into_iter().for_each(|mark| newest.see_trimmable(mark));
        }
        newest
    }

    /// Removes `node` if nothing needs it.
    fn prune(&mut self, node: NodeId) {
        if node == ROOT || self[node].entry.is_some() {
            return;
        }
        let parent = self[node].parent;
        let mut children = self[node].children.values();
        match (children.next().copied(), children.next()) {
            (None, _) => {
                let first = self[node].edge[0];
                self[parent].children.remove(&first);
                self.release(node);
                self.prune(parent);
            }
            (Some(child), None) => {
                let mut edge = self.release(node).edge;
                edge.append(&mut self[child].edge);
                self[child].edge = edge;
                self.adopt(parent, child);
            }
            (Some(_), Some(_)) => {}
        }
    }

    fn place(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.free.pop() {
            self[id] = node;
            return id;
        }
        self.nodes.push(node);
        NodeId(self.nodes.len() - 1)
    }

    fn release(&mut self, id: NodeId) -> Node {
        self.free.push(id);
        std::mem::replace(&mut self[id], Node::new(ROOT, Vec::new(), 0))
    }
}

impl Node {
    fn new(parent: NodeId, edge: Vec<u32>, depth: usize) -> Self {
        let (children, newest) = (BTreeMap::new(), Newest::default());
        Self { edge, depth, parent, children, entry: None, newest }
    }

    /// The newest entry at or below it.
    fn newest(&self) -> Option<Mark> {
        self.entry.max(self.newest.below)
    }

    /// How many tokens lead to its edge.
    fn start(&self) -> usize {
        self.depth - self.edge.len()
    }
}

impl Newest {
    fn see_trimmable(&mut self, mark: Mark) {
        if mark.can_trim {
            self.of_trimmable = self.of_trimmable.max(Some(mark));
        }
    }

    fn names(&self, mark: Mark) -> bool {
        self.below == Some(mark) || self.of_trimmable == Some(mark)
    }
}

impl Index<NodeId> for Trie {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }
}

impl IndexMut<NodeId> for Trie {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }
}

fn shared_tokens(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
impl Trie {
    /// Holds every node against the module's invariants, and the account: used + free = all.
    pub(super) fn check(&self) {
        let used = self.check_below(ROOT);
        assert_eq!(used + self.free.len(), self.nodes.len());
    }

    /// Checks `node` and those below, and counts them.
    fn check_below(&self, id: NodeId) -> usize {
        let node = &self[id];
        assert_eq!(id == ROOT, node.edge.is_empty());
        assert!(id == ROOT || node.entry.is_some() || node.children.len() > 1);
        assert!(node.entry.is_none_or(|mark| mark.tokens == node.depth));
        assert_eq!(node.newest, self.newest(id));
        let below = node.children.iter().map(|(first, child)| {
            assert_eq!(self[*child].edge.first(), Some(first));
            assert_eq!((self[*child].parent, self[*child].start()), (id, node.depth));
            self.check_below(*child)
        });
        1 + below.sum::<usize>()
    }
}
