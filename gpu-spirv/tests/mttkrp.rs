//! MTTKRP's bodies on the processor: by fibers, by nonzeros, by blocks, by atomic additions, and by elements, which TTM has too.

mod common;

use common::{Emulation, by_fours, close, dense, random, vec4};
use sparsimd_gpu_abi::{BLOCK_SIDE, MttkrpParams, WHOLE};
use sparsimd_shaders::spmm::{Nonzeros, Shape};
use sparsimd_shaders::team::Place;
use sparsimd_shaders::{elements, mttkrp};
use spirv_std::glam::{UVec4, Vec4};

/// Memory that nobody else adds to.
struct Alone<'a>(&'a mut [f32]);

impl mttkrp::Add<f32> for Alone<'_> {
    fn add(&mut self, i: u32, x: f32) {
        self.0[i as usize] += x;
    }
}

#[test]
fn every_body_agrees_with_the_sum() {
    // Order 3, dims 2 x 3 x 4; factors stacked: rows 0-1, 2-4, 5-8. Fibers (0,1), (0,2), (1,1).
    let ptr = [0, 2, 3, 6];
    let table = [0, 3, 0, 4, 1, 3];
    let leaf = [5, 7, 8, 5, 6, 8, 0, 0, 0, 0, 0, 0];
    let val: Vec<f32> = (0..12).map(|p| random(p) as f32).collect();
    let val4: Vec<Vec4> = val.chunks_exact(4).map(Vec4::from_slice).collect();
    let leaf4 = by_fours(&leaf);
    let width = 5;
    let (factors, rows) = dense(9, width, 5, vec4);
    let fiber_of = [0, 0, 1, 2, 2, 2];
    let params = |tasks: usize, skip, ordered| MttkrpParams {
        zero: 0.0f32,
        one: 1.0,
        tasks: tasks as u32,
        width,
        f_stride: width,
        f_offset: 0,
        c_stride: width,
        c_offset: 0,
        levels: 2,
        skip,
        ordered,
        tail: 4,
    };
    let nonzeros = Nonzeros { idx: &leaf, idx4: &leaf4, val: &val, val4: &val4 };
    let shape = Shape { team: 4, registers: 2 };
    // (output rows, tasks, level skipped, items through a list, list)
    let slices = vec![UVec4::new(0, 0, 2, WHOLE), UVec4::new(1, 2, 3, WHOLE)];
    let by_fiber = vec![UVec4::new(1, 0, 2, WHOLE), UVec4::new(2, 2, 3, WHOLE)];
    let by_leaf = vec![
        UVec4::new(0, 0, 2, WHOLE),
        UVec4::new(1, 2, 3, WHOLE),
        UVec4::new(2, 3, 4, WHOLE),
        UVec4::new(3, 4, 6, WHOLE),
    ];
    let cases =
        [(2usize, slices, 0u32, vec![]), (3, by_fiber, 1, vec![0, 2, 1]), (4, by_leaf, 2, vec![0, 3, 4, 1, 2, 5])];
    let coords = |p: usize| {
        let fiber = fiber_of[p] as usize;
        [table[2 * fiber], table[2 * fiber + 1], leaf[p]]
    };
    let want = |mode: usize, i: usize, j: usize| -> f64 {
        let term = |p: usize| {
            let others = (0..3).filter(|&m| m != mode);
            f64::from(val[p]) * others.map(|m| rows[coords(p)[m] as usize][j]).product::<f64>()
        };
        (0..6).filter(|&p| coords(p)[mode] as usize - [0, 2, 5][mode] == i).map(term).sum()
    };
    // The atomic variant, on coordinates; rows of five blocks of which the last holds three numbers.
    let table3: Vec<u32> = (0..6).flat_map(coords).collect();
    for (mode, dim) in [2usize, 3, 4].into_iter().enumerate() {
        let mut out = vec![0.0f32; dim * 4 * width as usize];
        let mut p = params(6, mode as u32, 0);
        (p.levels, p.tail) = (3, 3);
        p.c_offset = 0u32.wrapping_sub([0, 2, 5][mode] * width);
        for lane in 0..4 {
            let place = Place { team: 0, lane };
            mttkrp::atomic(shape, &p, place, 0, &table3, &val, &factors, &mut Alone(&mut out));
        }
        for (at, &got) in out.iter().enumerate() {
            let (i, j) = (at / (4 * width as usize), at % (4 * width as usize));
            let want = if j + 1 < 4 * width as usize { want(mode, i, j) } else { 0.0 };
            close(f64::from(got), want, &format!("atomic, mode {mode}, row {i}, {j}"));
        }
    }
    // The one block of HiCOO in two pieces: both a task's, and each a task's of its own with rows of its own.
    let bases = [UVec4::new(0, 2, 5, 0); 2];
    let offsets: Vec<u32> = (0..6).map(coords).map(|[i, j, k]| i | (j - 2) << 8 | (k - 5) << 16).collect();
    for (mode, dim) in [2usize, 3, 4].into_iter().enumerate() {
        for tasks in [vec![UVec4::new(0, 0, 2, WHOLE)], vec![UVec4::new(0, 0, 1, 0), UVec4::new(0, 1, 2, 1)]] {
            let parts = tasks.len();
            let (spread, mut p) = (vec![parts as u32; parts], params(parts, mode as u32, 1));
            (p.levels, p.tail) = (3, 3);
            let mut out = vec![Vec4::ZERO; dim * width as usize];
            // What an earlier launch has left there.
            let mut partial = vec![Vec4::ONE; parts * BLOCK_SIDE as usize * width as usize];
            for (team, lane) in (0..parts as u32).flat_map(|team| (0..4).map(move |lane| (team, lane))) {
                let (place, ptr) = (Place { team, lane }, [0, 3, 6]);
                let (spread, order, bases, offsets) = (&spread, &[0, 1], &bases, &offsets);
                let list = mttkrp::BlockList { spread, order, ptr: &ptr, bases, offsets, val: &val };
                mttkrp::blocks(shape, &p, place, 0, &tasks, list, &factors, &mut out, &mut partial);
            }
            for (i, j) in (0..dim).flat_map(|i| (0..4 * width as usize).map(move |j| (i, j))) {
                let at = |rows: &[Vec4], row: usize| f64::from(rows[row * width as usize + j / 4][j % 4]);
                let (got, padding) = match parts {
                    1 => (at(&out, i), j + 1 == 4 * width as usize),
                    _ => (at(&partial, 2 * i) + at(&partial, 2 * i + 1), false),
                };
                let want = if padding { 0.0 } else { want(mode, i, j) };
                close(got, want, &format!("{parts} parts of blocks, mode {mode}, row {i}, {j}"));
            }
        }
    }
    // Element by element, on scalars: slices of the first mode; and TTM in the last, a row for each fiber of its nonzeros.
    let scalars: Vec<f32> = factors.iter().flat_map(|block| block.to_array()).collect();
    let of_fibers: Vec<UVec4> = (0..3).map(|f| UVec4::new(f, ptr[f as usize], ptr[f as usize + 1], WHOLE)).collect();
    for (levels, rows_of, tasks) in [(2, 2, &cases[0].1), (0, 3, &of_fibers)] {
        let mut out = vec![0.0f32; rows_of * 4 * width as usize];
        let p = MttkrpParams { levels, tail: 3, ..params(tasks.len(), 0, 0) };
        // Invocations past the last element have nothing to do.
        for i in 0..=(4 * width - 1) * tasks.len() as u32 {
            elements::body(&p, i, tasks, &ptr, &table, &leaf, &val, &scalars, &mut out);
        }
        for (at, &got) in out.iter().enumerate() {
            let (i, j) = (at / (4 * width as usize), at % (4 * width as usize));
            let wanted = match levels {
                _ if j + 1 == 4 * width as usize => 0.0,
                0 => (ptr[i]..ptr[i + 1])
                    .map(|p| p as usize)
                    .map(|p| f64::from(val[p]) * rows[leaf[p] as usize][j])
                    .sum(),
                _ => want(0, i, j),
            };
            close(f64::from(got), wanted, &format!("elements, {levels} levels, row {i}, {j}"));
        }
    }
    for (mode, (dim, tasks, skip, order)) in cases.into_iter().enumerate() {
        let mut out = vec![Vec4::ZERO; dim * width as usize];
        let p = params(tasks.len(), skip, u32::from(!order.is_empty()));
        for team in 0..tasks.len() as u32 {
            for lane in (0..4).filter(|_| skip < 2) {
                let (place, out) = (Place { team, lane }, &mut out);
                mttkrp::fibers(shape, &p, place, 0, &tasks, &order, &ptr, &table, nonzeros, &factors, out, &mut []);
            }
        }
        // Two teams to a subgroup.
        for first in (0..tasks.len() as u32).step_by(2).filter(|_| skip == 2) {
            let blank = vec![Vec4::ZERO; out.len()];
            let sums = Emulation::new(8, 4).run(
                &blank,
                |x| *x == Vec4::ZERO,
                |team, lane, own| {
                    let task = first + team;
                    mttkrp::nonzeros(
                        shape,
                        &p,
                        task,
                        lane,
                        0,
                        &tasks,
                        &order,
                        &fiber_of,
                        &table,
                        &val,
                        &factors,
                        own,
                        &mut [],
                    );
                },
            );
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
        for i in 0..dim {
            for j in 0..4 * width as usize {
                let want = want(mode, i, j);
                close(f64::from(out[i * width as usize + j / 4][j % 4]), want, &format!("mode {mode}, row {i}, {j}"));
            }
        }
    }
}
