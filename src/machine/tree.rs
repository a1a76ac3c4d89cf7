//! The machine as a tree in text.

use std::fmt::Write;

use super::{HwThread, Machine, Source};

impl Machine {
    /// The machine as a tree: sockets, NUMA nodes, shared caches, cores, and for each processor which thread of a pool is
    /// bound to it, when thread `i` is bound to processor `binding[i]`. Processors that this process may not use are marked.
    pub fn tree(&self, binding: &[usize]) -> String {
        let source = match self.source() {
            Source::Sysfs => "from /sys",
            Source::Hwloc => "from hwloc",
            Source::Described => "as described",
            Source::Assumed => "assumed, nothing could be read",
        };
        let mut text = format!("{} ({source})\n", self.processor());
        let mut threads: Vec<_> = self.threads().iter().collect();
        threads.sort_by_key(|t| (t.socket, t.node, t.l3, t.core, t.smt));
        self.branch(&mut text, "", &threads, 0, binding);
        text
    }

    /// Writes the objects of one level that `threads` belong to, each with what is below it.
    fn branch(&self, text: &mut String, indent: &str, threads: &[&HwThread], level: usize, binding: &[usize]) {
        let object = |t: &HwThread| [t.socket, t.node, t.l3, t.core][level];
        let groups: Vec<_> = threads.chunk_by(|a, b| object(a) == object(b)).collect();
        for (i, group) in groups.iter().enumerate() {
            let (fork, below) = if i + 1 == groups.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let label = match level {
                0 => format!("socket {}", group[0].socket),
                1 => self.node_label(group[0].node),
                2 => format!("L3 {}: {}", group[0].l3, size(self.l3_bytes())),
                _ => self.core_label(group, binding),
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{indent}{fork}{label}");
            if level < 3 {
                self.branch(text, &format!("{indent}{below}"), group, level + 1, binding);
            }
        }
    }

    fn node_label(&self, node: usize) -> String {
        let node = &self.nodes()[node];
        let memory = if node.memory == 0 { String::new() } else { format!(": {}", size(node.memory as usize)) };
        let distances: Vec<_> = node.distances.iter().map(u32::to_string).collect();
        match distances.len() {
            1 => format!("NUMA node {}{memory}", node.id),
            _ => format!("NUMA node {}{memory}, distances {}", node.id, distances.join(" ")),
        }
    }

    fn core_label(&self, threads: &[&HwThread], binding: &[usize]) -> String {
        let words: Vec<_> = threads
            .iter()
            .map(|t| match binding.iter().position(|&cpu| cpu == t.cpu) {
                Some(thread) => format!("processor {} <- thread {thread}", t.cpu),
                None if self.allowed().contains(t.cpu) => format!("processor {}", t.cpu),
                None => format!("processor {} (not allowed)", t.cpu),
            })
            .collect();
        let caches = self.caches();
        format!("core {} (L1d {}, L2 {}): {}", threads[0].core, size(caches.l1d), size(caches.l2), words.join(", "))
    }
}

/// `48 KiB`, `1 MiB`, `5.2 GiB`.
fn size(bytes: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}
