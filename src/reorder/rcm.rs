//! Reverse Cuthill-McKee.
//!
//! ```text
//! for each component, from the vertex of least degree in it:
//!     start = a vertex whose farthest vertices are far:  the farthest of the farthest ... while that grows   (George and Liu)
//!     queue = [start]
//!     for v in queue:  append the neighbours of v that are not in the queue, by ascending degree
//! reverse the whole order
//! ```

use crate::error::Result;
use crate::memory;

use super::graph::Graph;

/// Searches for a start at most: they end after two or three on graphs of applications, and this many keep the time linear.
const SEARCHES: usize = 8;

/// The vertices of `graph` in reverse Cuthill-McKee order.
pub(super) fn order(graph: &Graph) -> Result<Vec<u32>> {
    let n = graph.vertices();
    memory::ensure("reverse Cuthill-McKee", memory::total(&[(n, 3 * size_of::<u32>() + 2)]))?;
    let mut numbered = vec![false; n];
    let mut search = Search { met: vec![false; n], queue: Vec::new() };
    let mut order: Vec<u32> = Vec::with_capacity(n);
    for v in graph.by_degree() {
        if numbered[v as usize] {
            continue;
        }
        let mut at = order.len();
        order.push(search.start(graph, v));
        numbered[order[at] as usize] = true;
        while at < order.len() {
            let first = order.len();
            let new =
                graph.neighbours(order[at]).iter().filter(|&&w| !std::mem::replace(&mut numbered[w as usize], true));
            order.extend(new);
            order[first..].sort_by_key(|&w| graph.degree(w));
            at += 1;
        }
    }
    order.reverse();
    Ok(order)
}

/// Breadth-first searches for the start of a component.
struct Search {
    met: Vec<bool>,
    queue: Vec<u32>,
}

impl Search {
    /// A vertex in the component of `v` that is about as far as can be from others.
    fn start(&mut self, graph: &Graph, v: u32) -> u32 {
        let (mut start, mut depth) = (v, 0);
        for _ in 0..SEARCHES {
            let (levels, farthest) = self.levels(graph, start);
            if levels <= depth {
                break;
            }
            (start, depth) = (farthest, levels);
        }
        start
    }

    /// The number of levels of a breadth-first search from `v`, and the vertex of least degree in the last one.
    fn levels(&mut self, graph: &Graph, v: u32) -> (usize, u32) {
        let Self { met, queue } = self;
        queue.clear();
        queue.push(v);
        met[v as usize] = true;
        let (mut level, mut levels) = (0..1, 0);
        while !level.is_empty() {
            for at in level.clone() {
                let new =
                    graph.neighbours(queue[at]).iter().filter(|&&w| !std::mem::replace(&mut met[w as usize], true));
                queue.extend(new);
            }
            levels += 1;
            let next = level.end..queue.len();
            if next.is_empty() {
                break;
            }
            level = next;
        }
        queue.iter().for_each(|&w| met[w as usize] = false);
        let farthest = queue[level].iter().min_by_key(|&&w| graph.degree(w));
        (levels, farthest.copied().unwrap_or(v))
    }
}
