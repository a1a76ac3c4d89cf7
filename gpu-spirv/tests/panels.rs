//! The bodies of the tiled kernels on the processor: each invocation of a workgroup is a thread, in subgroups that
//! exchange values.

mod common;

use std::sync::{Barrier, Mutex};

use common::{Emulation, Lane, close, dense, dot, random, vec4};
use sparsimd_gpu_abi::{BUNDLE, FusedParams, GRANULE, NOTHING, SddmmParams, SpmmParams, Tiled, WORKGROUP, Walk, edge};
use sparsimd_shaders::panels::{Memory, Panels, ThreadIndex};
use sparsimd_shaders::spmm::{Shape, reduce};
use sparsimd_shaders::{fusedmm_tiled, sddmm_tiled, spmm_tiled};
use spirv_std::glam::{UVec2, UVec4, Vec4};

const ROWS: u32 = 6;
const COLUMNS: u32 = 70;
const GRANULES: u32 = COLUMNS.div_ceil(GRANULE);
/// Two panels, the second of two rows.
const PANELS: [[u32; 4]; 2] = [[2, 0, 1, 3], [5, 4, NOTHING, NOTHING]];

/// Whether row i has column k: row 0 is empty, every third column is nobody's.
fn has(i: u32, k: u32) -> bool {
    (1..ROWS).contains(&i) && !k.is_multiple_of(3) && (k * 5 + i * 11) % 7 < 1 + i
}

fn value(i: u32, k: u32) -> f32 {
    random(5000 + 97 * i + k) as f32
}

/// The columns of row i.
fn columns_of(i: u32) -> impl Iterator<Item = u32> {
    (0..COLUMNS).filter(move |&k| has(i, k))
}

/// The matrix by panels.
struct SparseOperand {
    rows: Vec<UVec4>,
    ptr: Vec<u32>,
    columns: Vec<UVec2>,
    order: Vec<UVec4>,
    values: Vec<Vec4>,
}

impl SparseOperand {
    fn new() -> Self {
        let mut starts = vec![0];
        (0..ROWS).for_each(|i| starts.push(starts[i as usize] + columns_of(i).count() as u32));
        let number = |i: u32, k: u32| starts[i as usize] + columns_of(i).position(|c| c == k).unwrap() as u32;
        let rows = PANELS.map(UVec4::from_array).to_vec();
        let mut made = Self { rows, ptr: vec![], columns: vec![], order: vec![], values: vec![] };
        for g in 0..GRANULES {
            made.ptr.push(made.columns.len() as u32 / BUNDLE);
            let mask = |panel: [u32; 4], k: u32| (0..4).map(|r| u32::from(has(panel[r], k)) << (5 + r)).sum::<u32>();
            let lists: [Vec<u32>; BUNDLE as usize] = std::array::from_fn(|p| {
                let listed = |&k: &u32| PANELS.get(p).is_some_and(|&panel| mask(panel, k) != 0);
                (g * GRANULE..(g * GRANULE + GRANULE).min(COLUMNS)).filter(listed).collect()
            });
            let longest = lists.iter().map(Vec::len).max().unwrap();
            for first in (0..longest).step_by(4) {
                let at = |p: usize, c: usize| lists[p].get(first + c).map(|&k| (PANELS[p], k));
                for p in 0..BUNDLE as usize {
                    let packed = |c: usize| at(p, c).map_or(0, |(panel, k)| mask(panel, k) | (k % GRANULE));
                    made.columns.push(UVec2::new(packed(0) | packed(1) << 16, packed(2) | packed(3) << 16));
                }
                for (c, p) in (0..4).flat_map(|c| (0..BUNDLE as usize).map(move |p| (c, p))) {
                    let there =
                        |r: usize| at(p, c).filter(|&(panel, k)| has(panel[r], k)).map(|(panel, k)| (panel[r], k));
                    let order = |r: usize| there(r).map_or(NOTHING, |(i, k)| number(i, k));
                    made.order.push(UVec4::new(order(0), order(1), order(2), order(3)));
                    // What a row has not must not count, whatever stands there.
                    let x = |r: usize| there(r).map_or(f32::NAN, |(i, k)| value(i, k));
                    made.values.push(Vec4::new(x(0), x(1), x(2), x(3)));
                }
            }
        }
        made.ptr.push(made.columns.len() as u32 / BUNDLE);
        made
    }

    fn panels(&self) -> Panels<'_> {
        Panels { rows: &self.rows, ptr: &self.ptr, columns: &self.columns }
    }

    /// The values in CSR order.
    fn csr() -> Vec<f32> {
        (0..ROWS).flat_map(|i| columns_of(i).map(move |k| value(i, k))).collect()
    }

    /// What adds the parts of each row.
    fn cut(parts: u32) -> Vec<UVec4> {
        let rows = PANELS.as_flattened().iter().enumerate().filter(|&(_, &row)| row != NOTHING);
        rows.map(|(slot, &row)| UVec4::new(row, slot as u32 * parts, parts, 0)).collect()
    }
}

/// Workgroup memory of invocations that are threads.
struct Shared<'a>(&'a Mutex<Vec<Vec4>>, &'a Barrier);

impl Memory<Vec4> for Shared<'_> {
    fn set(&mut self, i: u32, x: Vec4) {
        self.0.lock().unwrap()[i as usize] = x;
    }
    fn get(&self, i: u32) -> Vec4 {
        self.0.lock().unwrap()[i as usize]
    }
    fn barrier(&self) {
        self.1.wait();
    }
}

/// What a launch writes: blocks, partial rows, numbers.
type Written = (Vec<Vec4>, Vec<Vec4>, Vec<f32>);

/// How a kernel is launched.
#[derive(Clone, Copy, Debug)]
struct Launch {
    /// Lanes of a subgroup.
    lanes: u32,
    team: u32,
    registers: u32,
    /// Blocks of a row of B.
    width: u32,
    parts: u32,
    span: u32,
}

impl Launch {
    fn new([lanes, team, registers, width, parts, span]: [u32; 6]) -> Self {
        Self { lanes, team, registers, width, parts, span }
    }

    fn shape(self) -> Shape {
        Shape { team: self.team, registers: self.registers }
    }

    fn walk(self) -> Walk {
        Walk { granules: GRANULES, span: self.span, b_rows: COLUMNS, zero: 0 }
    }

    /// Runs all workgroups, one after the other; `operands` go through workgroup memory. Every invocation writes to its
    /// own copy of `out`; an element that two of them wrote is a mistake.
    fn run(
        self,
        tiles: u32,
        operands: u32,
        out: &mut Written,
        body: impl Fn(ThreadIndex, Lane<'_>, &mut Shared<'_>, &mut Written) + Sync,
    ) {
        let groups = (PANELS.len() as u32).div_ceil(WORKGROUP / self.team) * self.parts;
        for (group, tile) in (0..groups).flat_map(|group| (0..tiles).map(move |tile| (group, tile))) {
            let blocks = operands * self.span * GRANULE * self.team * self.registers;
            let memory = Mutex::new(vec![Vec4::NAN; blocks as usize]);
            let barrier = Barrier::new(WORKGROUP as usize);
            let subgroups: Vec<_> =
                (0..WORKGROUP / self.lanes).map(|_| Emulation::new(self.lanes, self.team)).collect();
            let copies: Vec<Written> = std::thread::scope(|scope| {
                let run = |local| {
                    let (mut own, mut shared) = (out.clone(), Shared(&memory, &barrier));
                    let all = &subgroups[(local / self.lanes) as usize];
                    let (lane, body) = (Lane { all, number: local % self.lanes }, &body);
                    scope.spawn(move || {
                        body(ThreadIndex { group, local, tile }, lane, &mut shared, &mut own);
                        own
                    })
                };
                let running: Vec<_> = (0..WORKGROUP).map(run).collect();
                running.into_iter().map(|r| r.join().unwrap()).collect()
            });
            let bits = |x: &Vec4| x.to_array().map(f32::to_bits);
            merge(&mut out.0, copies.iter().map(|c| &c.0[..]), bits);
            merge(&mut out.1, copies.iter().map(|c| &c.1[..]), bits);
            merge(&mut out.2, copies.iter().map(|c| &c.2[..]), |x: &f32| x.to_bits());
        }
    }
}

/// Brings what each copy has changed to `out`.
fn merge<'a, T: Copy + 'a, B: PartialEq>(out: &mut [T], copies: impl Iterator<Item = &'a [T]>, bits: impl Fn(&T) -> B) {
    let before = out.to_vec();
    let mut written = vec![false; out.len()];
    for copy in copies {
        for (i, new) in copy.iter().enumerate().filter(|&(i, new)| bits(new) != bits(&before[i])) {
            assert!(!written[i], "element {i} was written twice");
            (written[i], out[i]) = (true, *new);
        }
    }
}

/// Adds the partial rows where there are parts.
fn add_parts(launch: Launch, softmax: bool, p: &SpmmParams<f32>, (c, partial, stats): &mut Written) {
    if launch.parts > 1 {
        let cut = SparseOperand::cut(launch.parts);
        let p = SpmmParams { tasks: cut.len() as u32, ..*p };
        (0..p.tasks * p.width + 1).for_each(|i| reduce(softmax, &p, i, &cut, partial, stats, &mut c[..]));
    }
}

fn product(width: u32, alpha: f32, beta: f32) -> SpmmParams<f32> {
    SpmmParams {
        alpha,
        beta,
        tasks: PANELS.len() as u32,
        width,
        b_stride: width,
        b_offset: 0,
        c_stride: width,
        c_offset: 0,
        read_c: u32::from(beta != 0.0),
        tail: 4,
    }
}

#[test]
fn spmm_of_every_shape() {
    let sparse = SparseOperand::new();
    for launch in [
        [32, 8, 4, 32, 1, 1],
        [4, 8, 4, 32, 1, 1],
        [4, 8, 4, 9, 2, 1],
        [4, 32, 1, 5, 1, 2],
        [4, 64, 1, 70, 2, 1],
        [4, 16, 2, 33, 1, 3],
    ] {
        let launch = Launch::new(launch);
        let (parts, width) = (launch.parts, launch.width);
        let (b, b_rows) = dense(COLUMNS, width, 0, vec4);
        let p = Tiled { of: product(width, 2.0, 0.5), walk: launch.walk() };
        let c = vec![Vec4::splat(3.0); (ROWS * width) as usize];
        let mut out = (c, vec![Vec4::NAN; (8 * parts * width) as usize], vec![]);
        launch.run(width.div_ceil(launch.shape().blocks()), 1, &mut out, |thread, _, memory, (c, partial, _)| {
            spmm_tiled::body(
                launch.shape(),
                parts,
                &p,
                thread,
                sparse.panels(),
                &sparse.values,
                &b,
                c,
                partial,
                memory,
            );
        });
        add_parts(launch, false, &p.of, &mut out);
        for (i, j) in (0..ROWS).flat_map(|i| (0..4 * width).map(move |j| (i, j))) {
            let sum: f64 = columns_of(i).map(|k| f64::from(value(i, k)) * b_rows[k as usize][j as usize]).sum();
            let got = out.0[(i * width + j / 4) as usize][(j % 4) as usize];
            close(f64::from(got), 2.0 * sum + 1.5, &format!("{launch:?}, row {i}, {j}"));
        }
    }
}

/// Teams that exchange values, of all sizes; rows that fill their registers and that do not.
const EXCHANGING: [[u32; 6]; 8] = [
    [32, 8, 4, 31, 2, 1],
    [8, 8, 4, 32, 1, 1],
    [4, 4, 4, 15, 1, 1],
    [8, 4, 1, 3, 2, 1],
    [8, 8, 2, 16, 1, 2],
    [16, 16, 1, 9, 2, 1],
    [32, 32, 1, 32, 1, 3],
    [64, 64, 1, 40, 2, 1],
];

#[test]
fn sddmm_of_every_shape() {
    let (sparse, val) = (SparseOperand::new(), SparseOperand::csr());
    for (launch, scaled) in EXCHANGING.into_iter().zip([1, 0, 0, 1, 1, 0, 1, 0]) {
        let launch = Launch::new(launch);
        let width = launch.width;
        let (b, b_rows) = dense(COLUMNS, width, 0, vec4);
        let (c, c_rows) = dense(ROWS, width, 77_000, vec4);
        // A second launch adds to the first.
        for accumulate in [0, 1] {
            let of = SddmmParams {
                alpha: 1.0f32,
                beta: 0.0,
                tasks: PANELS.len() as u32,
                width,
                c_stride: width,
                c_offset: 0,
                b_stride: width,
                b_offset: 0,
                scaled,
                accumulate,
            };
            let p = Tiled { of, walk: launch.walk() };
            let before = if accumulate == 1 { 0.25 } else { f32::NAN };
            let mut out = (vec![], vec![], vec![before; val.len()]);
            launch.run(1, 1, &mut out, |thread, lane, memory, (.., out)| {
                let (shape, panels) = (launch.shape(), sparse.panels());
                sddmm_tiled::body(
                    shape,
                    launch.parts,
                    &p,
                    thread,
                    lane,
                    panels,
                    &sparse.order,
                    &val,
                    &c,
                    &b,
                    out,
                    memory,
                );
            });
            let places = (0..ROWS).flat_map(|i| columns_of(i).map(move |k| (i as usize, k as usize)));
            for ((i, k), &got) in places.zip(&out.2) {
                let x = if scaled == 1 { f64::from(value(i as u32, k as u32)) } else { 1.0 };
                let want = x * dot(&c_rows[i], &b_rows[k]) + if accumulate == 1 { 0.25 } else { 0.0 };
                close(f64::from(got), want, &format!("{launch:?}, row {i}, column {k}"));
            }
        }
    }
}

#[test]
fn fusedmm_of_every_edge() {
    let sparse = SparseOperand::new();
    let val: Vec<f32> = sparse.values.iter().flat_map(|v| v.to_array()).collect();
    let edges = [edge::IDENTITY, edge::SCALE, edge::SIGMOID, edge::SOFTMAX];
    for (n, launch) in EXCHANGING.into_iter().enumerate() {
        let launch = Launch::new(launch);
        let (width, parts, out_width) = (launch.width, launch.parts, launch.width.div_ceil(2));
        let (b, b_rows) = dense(COLUMNS, width, 0, vec4);
        let (c, c_rows) = dense(ROWS, width, 77_000, vec4);
        let (d, d_rows) = dense(COLUMNS, out_width, 99_000, vec4);
        // Softmax in every shape, the others in turn.
        for variant in [edges[n % 3], edge::SOFTMAX] {
            let of = FusedParams {
                scale: 0.7f32,
                zero: 0.0,
                tasks: PANELS.len() as u32,
                width,
                c_stride: width,
                b_stride: width,
                d_stride: out_width,
                e_stride: out_width,
                out_width,
                tail: 4,
            };
            let p = Tiled { of, walk: launch.walk() };
            let blank = |rows: u32| vec![Vec4::NAN; (rows * out_width) as usize];
            let mut out = (blank(ROWS), blank(8 * parts), vec![f32::NAN; 16 * parts as usize]);
            launch.run(1, 2, &mut out, |thread, lane, memory, (e, partial, stats)| {
                let (shape, panels) = (launch.shape(), sparse.panels());
                fusedmm_tiled::body(
                    shape, variant, parts, &p, thread, lane, panels, &val, &c, &b, &d, e, partial, stats, memory,
                );
            });
            add_parts(launch, variant == edge::SOFTMAX, &product(out_width, 1.0, 0.0), &mut out);
            for i in 0..ROWS {
                let weight = |k: u32| {
                    let s = dot(&c_rows[i as usize], &b_rows[k as usize]);
                    match variant {
                        edge::SCALE => s * f64::from(value(i, k)),
                        edge::SIGMOID => 1.0 / (1.0 + (-s).exp()),
                        edge::SOFTMAX => (f64::from(0.7f32) * s).exp(),
                        _ => s,
                    }
                };
                let whole: f64 = if variant == edge::SOFTMAX { columns_of(i).map(weight).sum() } else { 1.0 };
                for j in 0..4 * out_width {
                    let sum: f64 = columns_of(i).map(|k| weight(k) * d_rows[k as usize][j as usize]).sum();
                    let want = if i == 0 { 0.0 } else { sum / whole };
                    let got = out.0[(i * out_width + j / 4) as usize][(j % 4) as usize];
                    close(f64::from(got), want, &format!("{launch:?}, edge {variant}, row {i}, {j}"));
                }
            }
        }
    }
}
