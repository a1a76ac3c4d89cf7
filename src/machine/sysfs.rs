//! The machine as Linux describes it in /sys and /proc, below a root folder that tests may replace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::assemble::{Raw, assemble};
use super::{Caches, CpuSet, HugePages, Machine, NumaNode, Source, TransparentHugePages, default_distances};

/// The files below one folder, read as trimmed text.
struct Folder(PathBuf);

impl Folder {
    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.join(name)).ok().map(|text| text.trim().to_owned())
    }

    fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.text(name)?.parse().ok()
    }

    fn set(&self, name: &str) -> Option<CpuSet> {
        CpuSet::parse(&self.text(name)?).ok()
    }

    fn folder(&self, name: impl AsRef<Path>) -> Self {
        Self(self.0.join(name))
    }
}

/// The machine whose /sys and /proc are below `root`; `None` when no processor can be read there.
pub(super) fn read(root: &Path, allowed: &CpuSet) -> Option<Machine> {
    let system = Folder(root.join("sys/devices/system"));
    let online = system.folder("cpu").set("online")?;
    let mut nodes = read_nodes(&system.folder("node"));
    if nodes.is_empty() {
        let memory = total_memory(root).unwrap_or(0);
        nodes.push((NumaNode { id: 0, memory, distances: vec![10] }, online.clone()));
    }
    let raw: Vec<Raw> =
        online.iter().filter_map(|cpu| read_cpu(&system.folder(format!("cpu/cpu{cpu}")), cpu, &nodes)).collect();
    let nodes = nodes.into_iter().map(|(node, _)| node).collect();
    assemble(Source::Sysfs, processor(root), &raw, nodes, allowed, huge_pages(root))
}

/// Every online node with its processors, in ascending order.
fn read_nodes(folder: &Folder) -> Vec<(NumaNode, CpuSet)> {
    let Some(online) = folder.set("online") else { return Vec::new() };
    online
        .iter()
        .enumerate()
        .filter_map(|(at, id)| {
            let node = folder.folder(format!("node{id}"));
            let cpus = node.set("cpulist")?;
            let memory = node.text("meminfo").and_then(|text| kilobytes(&text, "MemTotal:")).unwrap_or(0);
            let distances: Option<Vec<u32>> =
                node.text("distance").and_then(|text| text.split_whitespace().map(|d| d.parse().ok()).collect());
            let distances =
                distances.filter(|d| d.len() == online.len()).unwrap_or_else(|| default_distances(at, online.len()));
            Some((NumaNode { id, memory, distances }, cpus))
        })
        .collect()
}

fn read_cpu(folder: &Folder, cpu: usize, nodes: &[(NumaNode, CpuSet)]) -> Option<Raw> {
    let topology = folder.folder("topology");
    if !topology.0.is_dir() {
        return None;
    }
    let siblings = topology.set("core_cpus_list").or_else(|| topology.set("thread_siblings_list"));
    let (caches, shared) = read_caches(&folder.folder("cache"));
    // Firmware of some boards and virtual machines gives -1 for the package.
    let socket = topology.number("physical_package_id").unwrap_or(0);
    let package = topology.set("package_cpus_list").or_else(|| topology.set("core_siblings_list"));
    Some(Raw {
        cpu,
        socket,
        core: siblings.and_then(|s| s.first()).unwrap_or(cpu),
        l3: shared.or(package).and_then(|s| s.first()).unwrap_or(cpu),
        node: nodes.iter().position(|(_, cpus)| cpus.contains(cpu)).unwrap_or(0),
        caches,
    })
}

/// The sizes, and the processors that share the last level (`None` when no cache is described).
fn read_caches(folder: &Folder) -> (Caches, Option<CpuSet>) {
    let mut sizes = BTreeMap::new();
    let mut line = None;
    let mut last: Option<(u32, CpuSet)> = None;
    for index in (0..).map(|i| folder.folder(format!("index{i}"))).take_while(|f| f.0.is_dir()) {
        let (Some(level), Some(kind)) = (index.number::<u32>("level"), index.text("type")) else { continue };
        if kind == "Instruction" {
            continue;
        }
        if let Some(bytes) = index.text("size").and_then(|s| size(&s)) {
            sizes.insert(level, bytes);
        }
        line = line.or(index.number("coherency_line_size").filter(|&n: &usize| n.is_power_of_two()));
        if let Some(set) = index.set("shared_cpu_list") {
            // A cache of the second level or higher: with only private first-level caches there is nothing to share.
            if level >= 2 && last.as_ref().is_none_or(|(l, _)| level > *l) {
                last = Some((level, set));
            }
        }
    }
    let usual = Caches::default();
    let l3 = if sizes.is_empty() { usual.l3 } else { sizes.get(&3).copied() };
    let caches = Caches {
        l1d: sizes.get(&1).copied().unwrap_or(usual.l1d),
        l2: sizes.get(&2).copied().unwrap_or(usual.l2),
        l3,
        line: line.unwrap_or(usual.line),
    };
    (caches, last.map(|(_, set)| set))
}

/// `48K`, `32768K`, `1M` in bytes.
fn size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit).filter(|&n| n > 0)
}

/// The bytes of the line of a meminfo file that contains `key`.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(key))?;
    let words: Vec<_> = line.split_whitespace().collect();
    let at = words.iter().position(|&word| word == key)?;
    words.get(at + 1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of memory and swap space that nobody uses.
pub(super) fn available_memory(root: &Path) -> Option<u64> {
    let text = Folder(root.join("proc")).text("meminfo")?;
    Some(kilobytes(&text, "MemAvailable:")?.saturating_add(kilobytes(&text, "SwapFree:").unwrap_or(0)))
}

fn total_memory(root: &Path) -> Option<u64> {
    kilobytes(&Folder(root.join("proc")).text("meminfo")?, "MemTotal:")
}

/// The processor's name.
pub(super) fn processor(root: &Path) -> String {
    let text = Folder(root.join("proc")).text("cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == "model name"));
    named.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Huge pages.
pub(super) fn huge_pages(root: &Path) -> HugePages {
    let memory = Folder(root.join("sys/kernel/mm"));
    let transparent = memory.folder("transparent_hugepage");
    let size: usize = transparent.number("hpage_pmd_size").unwrap_or(0);
    HugePages {
        // The chosen one is in brackets: "always [madvise] never".
        transparent: match transparent.text("enabled").unwrap_or_default() {
            text if text.contains("[always]") => TransparentHugePages::Always,
            text if text.contains("[madvise]") => TransparentHugePages::Madvise,
            text if text.contains("[never]") => TransparentHugePages::Never,
            _ => TransparentHugePages::Unknown,
        },
        size,
        reserved: memory.folder(format!("hugepages/hugepages-{}kB", size >> 10)).number("nr_hugepages").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::super::{CpuSet, Machine, TransparentHugePages};
    use super::read;

    /// A folder that is removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sparsimd-sysfs-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn write(&self, path: &str, text: &str) {
            let file = self.0.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }

        fn read(&self, allowed: &str) -> Option<Machine> {
            read(&self.0, &CpuSet::parse(allowed).unwrap())
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Two sockets, each one node, of 2 cores with 2 threads; numbered as servers do: siblings 4 apart, sockets taking
    /// turns never. Node numbers 0 and 2, as on machines with empty slots.
    fn two_sockets(root: &Root) {
        let system = "sys/devices/system";
        root.write(&format!("{system}/cpu/online"), "0-7");
        root.write(&format!("{system}/node/online"), "0,2");
        for (node, cpus, distance) in [(0, "0-1,4-5", "10 21"), (2, "2-3,6-7", "21 10")] {
            root.write(&format!("{system}/node/node{node}/cpulist"), cpus);
            root.write(&format!("{system}/node/node{node}/distance"), distance);
            let meminfo = format!("Node {node} MemTotal:       2048 kB\nNode {node} MemFree:   7 kB");
            root.write(&format!("{system}/node/node{node}/meminfo"), &meminfo);
        }
        for cpu in 0..8 {
            let folder = format!("{system}/cpu/cpu{cpu}");
            let socket = cpu % 4 / 2;
            let (core, package) = (cpu % 4, ["0-1,4-5", "2-3,6-7"][socket]);
            root.write(&format!("{folder}/topology/physical_package_id"), &socket.to_string());
            root.write(&format!("{folder}/topology/core_cpus_list"), &format!("{core},{}", core + 4));
            let caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K")];
            for (i, (level, kind, size)) in caches.into_iter().chain([("3", "Unified", "36M")]).enumerate() {
                let index = format!("{folder}/cache/index{i}");
                root.write(&format!("{index}/level"), level);
                root.write(&format!("{index}/type"), kind);
                root.write(&format!("{index}/size"), size);
                root.write(&format!("{index}/coherency_line_size"), "64");
                let shared = if level == "3" { package.to_owned() } else { format!("{core},{}", core + 4) };
                root.write(&format!("{index}/shared_cpu_list"), &shared);
            }
        }
        root.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some Server CPU");
        root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
        root.write("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152");
        root.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3");
    }

    #[test]
    fn two_sockets_with_sparse_node_numbers() {
        let root = Root::new("two");
        two_sockets(&root);
        let machine = root.read("0-7").unwrap();
        assert_eq!((machine.sockets(), machine.nodes().len(), machine.l3_groups(), machine.cores()), (2, 2, 2, 4));
        assert_eq!(machine.nodes().iter().map(|n| n.id).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(machine.nodes()[1].distances, [21, 10]);
        assert_eq!(machine.nodes()[0].memory, 2048 << 10);
        assert_eq!((machine.l1d_bytes(), machine.l2_bytes(), machine.l3_bytes()), (48 << 10, 2 << 20, 36 << 20));
        let cpu6 = machine.threads()[6];
        assert_eq!((cpu6.core, cpu6.smt, cpu6.node, cpu6.socket, cpu6.l3), (2, 1, 1, 1, 1));
        assert_eq!(machine.processor(), "Some Server CPU");
        let pages = machine.huge_pages();
        assert_eq!((pages.transparent, pages.size, pages.reserved), (TransparentHugePages::Madvise, 2 << 20, 3));
    }

    #[test]
    fn restrictions_are_kept_and_impossible_ones_ignored() {
        let root = Root::new("allowed");
        two_sockets(&root);
        assert_eq!(root.read("2,6").unwrap().allowed().to_string(), "2,6");
        assert_eq!(root.read("2,6").unwrap().threads().len(), 8, "the rest of the machine stays visible");
        assert_eq!(root.read("100").unwrap().allowed().len(), 8);
    }

    #[test]
    fn missing_parts_are_assumed() {
        let root = Root::new("bare");
        assert_eq!(root.read("0"), None);
        root.write("sys/devices/system/cpu/online", "0-2");
        assert_eq!(root.read("0"), None, "no processor has a topology folder");
        for cpu in 0..2 {
            root.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), "-1");
        }
        root.write("proc/meminfo", "MemTotal:       1024 kB\nMemAvailable:    512 kB\nSwapFree:  8 kB\n");
        let machine = root.read("0-1").unwrap();
        assert_eq!((machine.threads().len(), machine.cores(), machine.nodes().len(), machine.sockets()), (2, 2, 1, 1));
        assert_eq!((machine.l1d_bytes(), machine.l2_bytes(), machine.l3_bytes()), (32 << 10, 1 << 20, 8 << 20));
        assert_eq!(machine.nodes()[0].memory, 1 << 20);
        assert_eq!(super::available_memory(&root.0), Some(520 << 10));
    }

    #[test]
    fn nonsense_in_the_files_is_no_panic() {
        for nonsense in ["", "x", "-", "5-2", "18446744073709551616", "\u{fffd}"] {
            let root = Root::new(&format!("bad{}", nonsense.len()));
            two_sockets(&root);
            for path in [
                "sys/devices/system/node/online",
                "sys/devices/system/node/node0/distance",
                "sys/devices/system/node/node0/meminfo",
                "sys/devices/system/cpu/cpu1/topology/core_cpus_list",
                "sys/devices/system/cpu/cpu1/cache/index0/size",
                "sys/devices/system/cpu/cpu1/cache/index3/shared_cpu_list",
                "sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
            ] {
                root.write(path, nonsense);
            }
            let machine = root.read("0-7").unwrap();
            assert_eq!(machine.threads().len(), 8);
            assert!(Path::new(&root.0).exists());
        }
    }
}
