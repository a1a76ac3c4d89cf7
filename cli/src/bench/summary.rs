//! Many cases in one number: geometric means of ratios.

use super::results::{Case, Ratio, Sample};

/// What stands for the ceiling of the arithmetic among the peers.
pub const PEAK: &str = "FMA peak";
/// This library's SDDMM and then its SpMM, beside FusedMM: not a peer, but what a fused operation must not be slower than.
pub const UNFUSED: &str = "unfused";
/// Whoever is fastest in each case.
pub const FASTEST: &str = "fastest peer";

impl Ratio {
    /// In a line.
    pub fn text(&self) -> String {
        let Self { op, against, cases, mean, min, min_case, max } = self;
        if against == PEAK {
            let [mean, min, max] = [mean, min, max].map(|share| 100.0 * share);
            return format!(
                "{op:<10}{mean:>7.1} % of the FMA peak over {cases} cases ({min:.1} in {min_case}, to {max:.1})"
            );
        }
        format!("{op:<10}{mean:>7.2} x {against} over {cases} cases ({min:.2} in {min_case}, to {max:.2})")
    }
}

/// The geometric mean; `None` of nothing.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.into_iter().fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

/// All comparisons that the cases allow, by operation in the order of first appearance.
pub fn ratios(cases: &[Case]) -> Vec<Ratio> {
    let mut all = Vec::new();
    for op in distinct(cases.iter().map(|case| case.op.as_str())) {
        let of_op: Vec<_> = cases.iter().filter(|case| case.op == op).collect();
        let peers = distinct(of_op.iter().flat_map(|case| case.peers()).map(|peer| peer.name.as_str()));
        all.extend(peers.iter().filter_map(|name| ratio(op, name, &of_op, |peer| peer.name == *name)));
        let others = peers.iter().filter(|&&name| name != UNFUSED).count();
        if others > 1 {
            all.extend(ratio(op, FASTEST, &of_op, |peer| peer.name != UNFUSED));
        }
        // The dense products stand beside the sparse ones: without the most obvious opponent, is anybody faster?
        if others > 2 && peers.contains(&"MKL sparse") {
            let against = format!("{FASTEST} but MKL sparse");
            all.extend(ratio(op, &against, &of_op, |peer| peer.name != "MKL sparse" && peer.name != UNFUSED));
        }
        let shares = of_op.iter().filter(|case| case.peak_gflops > 0.0);
        let shares = shares.filter_map(|case| Some((case.ours()?.gflops / case.peak_gflops, case.id.as_str())));
        all.extend(extent(op, PEAK, shares.collect()));
    }
    all
}

/// Against the fastest of those that `counts`.
fn ratio(op: &str, against: &str, cases: &[&Case], counts: impl Fn(&Sample) -> bool) -> Option<Ratio> {
    let each = cases.iter().filter_map(|case| {
        let theirs = case.peers().filter(|peer| counts(peer)).map(|peer| peer.min_s).min_by(f64::total_cmp)?;
        Some((theirs / case.ours()?.min_s, case.id.as_str()))
    });
    extent(op, against, each.collect())
}

fn extent(op: &str, against: &str, each: Vec<(f64, &str)>) -> Option<Ratio> {
    let (min, min_case) = *each.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Ratio {
        op: op.to_owned(),
        against: against.to_owned(),
        cases: each.len(),
        mean: geometric_mean(each.iter().map(|(ratio, _)| *ratio))?,
        min,
        min_case: min_case.to_owned(),
        max: each.iter().map(|(ratio, _)| *ratio).fold(min, f64::max),
    })
}

/// Each once, in the order of first appearance.
pub fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(id: &str, times: &[(&str, f64)]) -> Case {
        let sample = |&(name, min_s): &(&str, f64)| Sample {
            name: name.to_owned(),
            ours: name == "ours",
            detail: String::new(),
            prepare_s: None,
            min_s,
            median_s: min_s,
            cold_s: min_s,
            runs: 3,
            gflops: 8.0 / min_s,
            error: None,
            figures: Default::default(),
        };
        let samples = times.iter().map(sample).collect();
        Case { id: id.to_owned(), op: "spmm".to_owned(), peak_gflops: 16.0, samples, ..Case::default() }
    }

    #[test]
    fn means_and_extremes() {
        let cases = [
            case("a", &[("ours", 1.0), ("MKL sparse", 2.0), ("x", 3.0), ("y", 4.0)]),
            case("b", &[("ours", 2.0), ("MKL sparse", 16.0), ("x", 3.0)]),
        ];
        let all = ratios(&cases);
        let get = |against: &str| all.iter().find(|ratio| ratio.against == against).unwrap();
        let mkl = get("MKL sparse");
        assert!((mkl.mean - 4.0).abs() < 1e-12);
        assert_eq!((mkl.cases, mkl.min, mkl.min_case.as_str(), mkl.max), (2, 2.0, "a", 8.0));
        assert_eq!(get("y").cases, 1);
        assert!((get(FASTEST).mean - (2.0f64 * 1.5).sqrt()).abs() < 1e-12);
        assert!((get("fastest peer but MKL sparse").mean - (3.0f64 * 1.5).sqrt()).abs() < 1e-12);
        assert!((get(PEAK).mean - (0.5f64 * 0.25).sqrt()).abs() < 1e-12);
        assert_eq!(geometric_mean([]), None);
    }
}
