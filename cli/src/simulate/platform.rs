//! What a platform file of SimGrid says of its cluster, as far as the model of a plan has words for it.

use std::path::{Path, PathBuf};

use sparsimd::{Error, Result};
use sparsimd_distributed::Cluster;

/// The cluster that stands for those that nobody has described.
const STATED: &str = include_str!("cluster.xml");

/// A cluster of equal nodes, each with a link of its own to all others.
#[derive(Debug)]
pub struct Platform {
    /// The file's content.
    pub text: String,
    /// Names of the nodes.
    pub hosts: Vec<String>,
    /// Seconds a message, bytes a second, operations a second of a node.
    pub cluster: Cluster,
}

impl Platform {
    /// From a file, or the one that comes with the program.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Parse`] when there is no `cluster` with `prefix`, `radical`, `speed`, `bw` and `lat`.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let (path, text) = match path {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.into(), source })?;
                (path.to_owned(), text)
            }
            None => (PathBuf::from("the stated cluster"), STATED.to_owned()),
        };
        Self::parse(&text).map_err(|(line, detail)| Error::Parse { path, line, detail })
    }

    /// A cluster of links of this latency in seconds, from node to node, and bandwidth in bytes a second.
    pub fn of(latency: f64, bandwidth: f64) -> Self {
        let (nanoseconds, nodes) = (latency / 2.0 * 1e9, 1024);
        let text = format!(
            "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n<platform version=\"4.1\">\n  \
             <cluster id=\"measured\" prefix=\"node-\" suffix=\"\" radical=\"0-{}\" speed=\"100Gf\" bw=\"{bandwidth:.0}Bps\" \
             lat=\"{nanoseconds:.2}ns\" sharing_policy=\"SPLITDUPLEX\"/>\n</platform>\n",
            nodes - 1
        );
        let hosts = (0..nodes).map(|k| format!("node-{k}")).collect();
        let cluster = Cluster { latency, bandwidth, flops: 1e11, ..Cluster::default() };
        Self { text, hosts, cluster }
    }

    fn parse(text: &str) -> std::result::Result<Self, (u64, String)> {
        let Some(start) = text.find("<cluster") else { return Err((0, "there is no <cluster ...>".to_owned())) };
        let line = text[..start].matches('\n').count() as u64 + 1;
        let tag = text[start..].split('>').next().unwrap_or_default();
        let attribute = |name: &str| -> Option<&str> {
            let rest = tag.split_once(&format!(" {name}=\""))?.1;
            rest.split('"').next()
        };
        let wanted = |name: &str| attribute(name).ok_or_else(|| (line, format!("the cluster has no {name}")));
        let number = |name: &str, units: &[(&str, f64)]| {
            let text = wanted(name)?;
            quantity(text, units)
                .ok_or_else(|| (line, format!("{name} {text:?} is no number with a unit that is known")))
        };
        let speed = number("speed", &[("f", 1.0)])?;
        let bandwidth = number("bw", &[("Bps", 1.0), ("bps", 0.125)])?;
        let latency = number("lat", &[("s", 1.0)])?;
        let (prefix, suffix) = (wanted("prefix")?, attribute("suffix").unwrap_or_default());
        let radical = wanted("radical")?;
        let numbers = numbers(radical).ok_or_else(|| (line, format!("radical {radical:?} is not like 0-1023")))?;
        let hosts = numbers.into_iter().map(|k| format!("{prefix}{k}{suffix}")).collect();
        // A message passes a link up and a link down.
        let cluster = Cluster { latency: 2.0 * latency, bandwidth, flops: speed, ..Cluster::default() };
        Ok(Self { text: text.to_owned(), hosts, cluster })
    }
}

/// A positive number with a decimal prefix and one of `units`.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let prefixes = [("n", 1e-9), ("u", 1e-6), ("m", 1e-3), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];
    let with = prefixes.iter().find_map(|(prefix, factor)| Some((number.strip_suffix(prefix)?, *factor)));
    let (number, factor) = with.unwrap_or((number, 1.0));
    number.trim().parse::<f64>().ok().map(|x| x * factor * unit).filter(|x| *x > 0.0 && x.is_finite())
}

/// `0-3,7`.
fn numbers(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // More nodes than any cluster has are a mistake.
        if last < first || last - first > 1 << 20 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stated_cluster_is_read() {
        let platform = Platform::load(None).unwrap();
        assert_eq!((platform.hosts.len(), platform.hosts[1023].as_str()), (1024, "node-1023"));
        let Cluster { latency, bandwidth, flops, .. } = platform.cluster;
        assert!((latency / 2e-6 - 1.0).abs() < 1e-12 && (bandwidth, flops) == (12.5e9, 1e11));
    }

    #[test]
    fn measured_clusters_are_read_back() {
        let made = Platform::of(3.2e-7, 8.1e9);
        let read = Platform::parse(&made.text).unwrap();
        assert_eq!((&read.hosts, read.cluster.bandwidth), (&made.hosts, made.cluster.bandwidth));
        assert!((read.cluster.latency / made.cluster.latency - 1.0).abs() < 1e-4);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("<platform/>", "no <cluster"),
            ("<cluster id=\"a\" prefix=\"n\" radical=\"0-1\" bw=\"1GBps\" lat=\"1us\"/>", "no speed"),
            ("<cluster prefix=\"n\" radical=\"0-1\" speed=\"1Gf\" bw=\"fast\" lat=\"1us\"/>", "bw \"fast\""),
            ("<cluster prefix=\"n\" radical=\"3-1\" speed=\"1Gf\" bw=\"8Gbps\" lat=\"1us\"/>", "radical"),
        ] {
            let (line, detail) = Platform::parse(text).unwrap_err();
            assert!(detail.contains(words) && line <= 1, "{detail}");
        }
        let good = "\n<cluster prefix=\"n\" suffix=\".x\" radical=\"0-1,5\" speed=\"2Gf\" bw=\"8Gbps\" lat=\"500ns\"/>";
        let platform = Platform::parse(good).unwrap();
        assert_eq!(platform.hosts, ["n0.x", "n1.x", "n5.x"]);
        assert!((platform.cluster.bandwidth / 1e9 - 1.0).abs() < 1e-12);
        assert!((platform.cluster.latency / 1e-6 - 1.0).abs() < 1e-12);
    }
}
