//! Rabbit Order: vertices of one community, and of one community inside it, get neighbouring numbers.
//!
//! ```text
//! each vertex is a community of its own;  d = its degree, 2m = the sum of all degrees
//! for u by ascending degree:
//!     w(v) = edges between the community of u and that of v, for all communities v beside it
//!     v = the one with the largest gain of modularity, which is proportional to  w(v) - d(u) d(v) / 2m
//!     if that gain is positive:  u becomes a child of v;  d(v) += d(u)
//!     else:                      u is the root of a tree
//! number each tree depth first
//! ```
//!
//! The edges of a community are those of its vertices, put together when it is visited. Weights are whole numbers, and the loop is
//! sequential: the order depends on the graph alone.

use crate::error::Result;
use crate::memory;

use super::graph::Graph;

/// No vertex.
const NONE: u32 = u32::MAX;

/// The trees of communities while they grow.
struct Communities {
    /// A vertex nearer to the root of the tree; of a root itself.
    up: Vec<u32>,
    /// The child that was added last.
    child: Vec<u32>,
    /// The child of the same parent that was added before.
    sibling: Vec<u32>,
    /// Of a root: the sum of the degrees in its tree.
    degree: Vec<u64>,
}

impl Communities {
    /// The root of the tree of `v`; the way to it becomes shorter.
    fn root(&mut self, mut v: u32) -> u32 {
        while self.up[v as usize] != v {
            let above = self.up[self.up[v as usize] as usize];
            self.up[v as usize] = above;
            v = above;
        }
        v
    }

    /// The root `u` becomes a child of the root `v`.
    fn add(&mut self, u: u32, v: u32) {
        self.up[u as usize] = v;
        self.sibling[u as usize] = std::mem::replace(&mut self.child[v as usize], u);
        self.degree[v as usize] += self.degree[u as usize];
    }

    /// The vertices, tree after tree, each depth first.
    fn numbered(&self, roots: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.up.len());
        let mut open = Vec::new();
        for root in roots {
            open.push(root);
            while let Some(v) = open.pop() {
                order.push(v);
                let mut child = self.child[v as usize];
                while child != NONE {
                    open.push(child);
                    child = self.sibling[child as usize];
                }
            }
        }
        order
    }
}

/// The edges of a community, by the community at their other end.
struct Edges {
    /// Of each community; 0 but for those in `met`.
    weight: Vec<u64>,
    met: Vec<u32>,
}

impl Edges {
    fn add(&mut self, v: u32, weight: u64) {
        let sum = &mut self.weight[v as usize];
        if *sum == 0 {
            self.met.push(v);
        }
        *sum += weight;
    }

    /// The communities and weights, which are forgotten.
    fn take(&mut self) -> Vec<(u32, u64)> {
        self.met.drain(..).map(|v| (v, std::mem::take(&mut self.weight[v as usize]))).collect()
    }
}

/// The vertices of `graph` in Rabbit Order.
pub(super) fn order(graph: &Graph) -> Result<Vec<u32>> {
    let n = graph.vertices();
    let vertex = 6 * size_of::<u32>() + 2 * size_of::<u64>() + size_of::<Vec<(u32, u64)>>();
    memory::ensure("Rabbit Order", memory::total(&[(n, vertex), (graph.degrees(), size_of::<(u32, u64)>())]))?;
    let mut communities = Communities {
        up: (0..n as u32).collect(),
        child: vec![NONE; n],
        sibling: vec![NONE; n],
        degree: (0..n as u32).map(|v| graph.degree(v) as u64).collect(),
    };
    let mut edges = Edges { weight: vec![0; n], met: Vec::new() };
    // Of each vertex that is somebody's child, until that one is visited.
    let mut kept: Vec<Vec<(u32, u64)>> = vec![Vec::new(); n];
    let all = graph.degrees() as f64;
    let order = graph.by_degree();
    for &u in &order {
        graph.neighbours(u).iter().for_each(|&w| edges.add(communities.root(w), 1));
        let mut child = communities.child[u as usize];
        while child != NONE {
            for (w, weight) in std::mem::take(&mut kept[child as usize]) {
                edges.add(communities.root(w), weight);
            }
            child = communities.sibling[child as usize];
        }
        let mut beside = edges.take();
        beside.retain(|&(v, _)| v != u);
        let share = communities.degree[u as usize] as f64 / all;
        let mut best = (0.0, NONE);
        for &(v, weight) in &beside {
            let gain = weight as f64 - share * communities.degree[v as usize] as f64;
            if gain > best.0 {
                best = (gain, v);
            }
        }
        if best.1 != NONE {
            kept[u as usize] = beside;
            communities.add(u, best.1);
        }
    }
    let is_root = |&v: &u32| communities.up[v as usize] == v;
    Ok(communities.numbered(order.iter().copied().filter(is_root)))
}
