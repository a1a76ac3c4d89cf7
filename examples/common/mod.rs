//! What the examples share: graphs, timing, and the dense part of a small neural network.
#![allow(dead_code, reason = "each example uses its own part")]

use std::path::PathBuf;
use std::time::Instant;

use sparsimd::io::{ReadOptions, read_matrix};
use sparsimd::{Coo, Cpu, Csr, Error, Mat, Result, Scalar, generate};

/// The graph of a file, by default the one that ships with the project.
pub fn graph<T: Scalar>(cpu: &Cpu, file: Option<PathBuf>) -> Result<Csr<T>> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ca-CondMat.mtx.gz");
    let path = file.unwrap_or_else(|| own.into());
    cpu.install(|| read_matrix(&path, ReadOptions::default()))?.into_csr()
}

/// The first argument of the program, if there is one.
pub fn argument() -> Option<PathBuf> {
    std::env::args_os().nth(1).map(PathBuf::from)
}

/// The file called `name` in the folder of real matrices (the variable SPARSIMD_DATA, else ../shared/data), if it is there.
pub fn data(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SPARSIMD_DATA")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data")), PathBuf::from);
    Some(folder.join(name)).filter(|path| path.exists())
}

/// D^-1/2 (A + I) D^-1/2 with ones for the weights of A, D the degrees of A + I; a loop that A has already stays single.
pub fn normalised<T: Scalar>(graph: &Csr<T>) -> Result<Csr<T>> {
    let n = graph.rows();
    if n != graph.cols() {
        let detail = format!("{} x {} is not square, as the matrix of a graph is", n, graph.cols());
        return Err(Error::Argument { name: "graph", detail });
    }
    let edges = Coo::from(graph);
    let mut entries: Vec<(u32, u32)> = edges.row_idx().iter().copied().zip(edges.col_idx().iter().copied()).collect();
    entries.retain(|(i, j)| i != j);
    entries.extend((0..n as u32).map(|i| (i, i)));
    let mut degree = vec![0.0; n];
    entries.iter().for_each(|&(i, _)| degree[i as usize] += 1.0);
    let weight = |&(i, j): &(u32, u32)| T::from_f64(1.0 / f64::sqrt(degree[i as usize] * degree[j as usize]));
    let values = entries.iter().map(weight).collect();
    let (rows, cols) = entries.into_iter().unzip();
    Coo::new(n, n, rows, cols, values)?.to_csr()
}

/// The shortest of `runs` runs, in seconds.
pub fn shortest(runs: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// A graph's nodes with made features and classes: classes spread over the graph from a few nodes, features are the class' own numbers
/// under as much noise.
pub struct Nodes {
    /// Nodes x features.
    pub features: Mat<f64>,
    /// The class of each node.
    pub classes: Vec<usize>,
}

/// Nodes for `a`, the normalised matrix of a graph.
pub fn made_nodes(cpu: &Cpu, a: &Csr<f64>, features: usize, classes: usize) -> Result<Nodes> {
    let n = a.rows();
    // The class of a node is the largest of `classes` numbers after some rounds of averaging over neighbours.
    let mut x = generate::uniform_dense(n, classes, 1)?;
    for _ in 0..4 {
        let mut y = Mat::zeros(n, classes)?;
        cpu.spmm(1.0, a, x.as_ref(), 0.0, y.as_mut())?;
        x = y;
    }
    let largest = |row: &[f64]| (0..row.len()).fold(0, |best, c| if row[c] > row[best] { c } else { best });
    let own: Vec<usize> = x.iter_rows().map(largest).collect();
    let signal = generate::uniform_dense::<f64>(classes, features, 2)?;
    let noise = generate::uniform_dense::<f64>(n, features, 3)?;
    let features = Mat::from_fn(n, features, |i, f| signal.row(own[i])[f] + noise.row(i)[f])?;
    Ok(Nodes { features, classes: own })
}

/// The same numbers in another type.
pub fn converted<T: Scalar>(x: &Mat<f64>) -> Result<Mat<T>> {
    Mat::from_fn(x.rows(), x.cols(), |i, j| T::from_f64(x.row(i)[j]))
}

/// The same matrix in another type.
pub fn converted_matrix<T: Scalar>(a: &Csr<f64>) -> Result<Csr<T>> {
    Csr::new(a.pattern().clone(), a.values().iter().map(|&x| T::from_f64(x)).collect())
}

/// X W.
pub fn product<T: Scalar>(x: &Mat<T>, w: &Mat<T>) -> Result<Mat<T>> {
    let mut y = Mat::zeros(x.rows(), w.cols())?;
    for i in 0..x.rows() {
        let y = y.row_mut(i);
        for (k, &x) in x.row(i).iter().enumerate() {
            y.iter_mut().zip(w.row(k)).for_each(|(y, &w)| *y += x * w);
        }
    }
    Ok(y)
}

/// X^T Y.
pub fn product_of_transpose<T: Scalar>(x: &Mat<T>, y: &Mat<T>) -> Result<Mat<T>> {
    let mut w = Mat::zeros(x.cols(), y.cols())?;
    for i in 0..x.rows() {
        for (k, &x) in x.row(i).iter().enumerate() {
            w.row_mut(k).iter_mut().zip(y.row(i)).for_each(|(w, &y)| *w += x * y);
        }
    }
    Ok(w)
}

/// W^T.
pub fn transpose<T: Scalar>(w: &Mat<T>) -> Result<Mat<T>> {
    Mat::from_fn(w.cols(), w.rows(), |i, j| w.row(j)[i])
}

/// Weights of a layer, uniform, of variance 2 / (inputs + outputs) (Glorot and Bengio 2010).
pub fn weights<T: Scalar>(inputs: usize, outputs: usize, seed: u64) -> Result<Mat<T>> {
    // Uniform numbers from -1/2 to 1/2 have variance 1/12.
    let factor = (24.0 / (inputs + outputs) as f64).sqrt();
    let uniform = generate::uniform_dense::<f64>(inputs, outputs, seed)?;
    Mat::from_fn(inputs, outputs, |i, j| T::from_f64(factor * uniform.row(i)[j]))
}

/// max(x, 0), in place.
pub fn rectify<T: Scalar>(x: &mut Mat<T>) {
    x.iter_rows_mut().flatten().for_each(|x| *x = if *x > T::ZERO { *x } else { T::ZERO });
}

/// The gradient before [`rectify`] from the one behind it, in place; `y` is the result of it.
pub fn rectify_gradient<T: Scalar>(gradient: &mut Mat<T>, y: &Mat<T>) {
    let pairs = gradient.iter_rows_mut().flatten().zip(y.iter_rows().flatten());
    pairs.for_each(|(g, &y)| *g = if y > T::ZERO { *g } else { T::ZERO });
}

/// The mean cross-entropy of the softmax of each row and the row's class, and its gradient; and the share of rows whose largest number is
/// their class'.
pub fn cross_entropy<T: Scalar>(logits: &Mat<T>, classes: &[usize]) -> Result<(f64, Mat<T>, f64)> {
    let (n, mut loss, mut right) = (logits.rows() as f64, 0.0, 0);
    let mut gradient = Mat::zeros(logits.rows(), logits.cols())?;
    for (i, &class) in classes.iter().enumerate() {
        let row: Vec<f64> = logits.row(i).iter().map(|x| x.to_f64()).collect();
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        loss += largest + sum.ln() - row[class];
        right += usize::from(row[class] == largest);
        for (c, g) in gradient.row_mut(i).iter_mut().enumerate() {
            let wanted = f64::from(u8::from(c == class));
            *g = T::from_f64(((row[c] - largest).exp() / sum - wanted) / n);
        }
    }
    Ok((loss / n, gradient, right as f64 / n))
}

/// Adam (Kingma and Ba 2015) for one matrix of weights.
pub struct Adam<T> {
    mean: Mat<T>,
    square: Mat<T>,
    step: i32,
}

impl<T: Scalar> Adam<T> {
    /// For `weights`.
    pub fn new(weights: &Mat<T>) -> Result<Self> {
        let zeros = || Mat::zeros(weights.rows(), weights.cols());
        Ok(Self { mean: zeros()?, square: zeros()?, step: 0 })
    }

    /// One step of length `rate`.
    pub fn step(&mut self, weights: &mut Mat<T>, gradient: &Mat<T>, rate: f64) {
        self.step += 1;
        let corrections = [1.0 - 0.9f64.powi(self.step), 1.0 - 0.999f64.powi(self.step)];
        for i in 0..weights.rows() {
            for (j, &g) in gradient.row(i).iter().enumerate() {
                let g = g.to_f64();
                let mean = 0.9 * self.mean.row(i)[j].to_f64() + 0.1 * g;
                let square = 0.999 * self.square.row(i)[j].to_f64() + 0.001 * g * g;
                (self.mean.row_mut(i)[j], self.square.row_mut(i)[j]) = (T::from_f64(mean), T::from_f64(square));
                let change = rate * (mean / corrections[0]) / ((square / corrections[1]).sqrt() + 1e-8);
                weights.row_mut(i)[j] += T::from_f64(-change);
            }
        }
    }
}

/// Prints the losses of a run in f32 beside those of the same in f64, and sees that both fall alike.
///
/// # Panics
/// When they do not: the last loss must be below half the first, and none may differ by more than a hundredth.
pub fn compare(single: &[f64], double: &[f64]) {
    for (epoch, (single, double)) in single.iter().zip(double).enumerate() {
        if epoch % 10 == 0 {
            println!("{epoch:>5}  {single:.5}  {double:.5}");
        }
        assert!(
            (single - double).abs() <= 0.01 * double,
            "epoch {epoch}: the loss is {single} in f32 and {double} in f64"
        );
    }
    let (first, last) = (single[0], single[single.len() - 1]);
    println!("the loss fell from {first:.4} to {last:.4} in f32, to {:.4} in f64", double[double.len() - 1]);
    assert!(last < 0.5 * first, "the loss did not fall");
}
