//! The simulated designs for FPGAs beside the analytic model, and by hand on tensors of a few nonzeros.

use sparsimd::formats::{CooTensor, Csf, rooted_mode_order};
use sparsimd::{Error, generate};
use sparsimd_measure::{BOARDS, Board, FpgaOp, FpgaRun, FpgaTimes, RowStore};

fn tree(x: &CooTensor<f32>, root: usize) -> Csf<f32> {
    Csf::from_coo(x, &rooted_mode_order(x.dims(), root)).unwrap()
}

fn arria() -> &'static Board {
    Board::named("arria10-gx1150").unwrap()
}

fn run(op: FpgaOp, columns: usize, elements: usize, rows: RowStore, board: &Board, x: &Csf<f32>) -> FpgaTimes {
    FpgaRun { op, columns, elements, rows }.simulate(board, x).unwrap()
}

#[test]
fn the_simulation_is_never_below_the_model_and_near_it_where_rows_are_whole_bursts() {
    let shapes = [(vec![50, 60, 400], 30_000), (vec![300, 20, 30, 40], 20_000), (vec![2000, 3000], 15_000)];
    for (dims, nnz) in shapes {
        let x = tree(&generate::skewed(&dims, nnz, 3).unwrap(), 0);
        for board in &BOARDS {
            for op in [FpgaOp::Ttm, FpgaOp::Mttkrp] {
                for elements in [1, 4] {
                    for columns in [1, 2, 4, 8, 16, 32, 64, 128] {
                        let times = run(op, columns, elements, RowStore::Memory, board, &x);
                        // The tables count two words of boundaries that streams have in their last bursts.
                        let share = times.model_s / times.simulated_s;
                        assert!(share <= 1.001, "{op:?}, {columns} columns, {elements} elements: {times:?}");
                        if columns >= 16 {
                            assert!(share > 0.7, "{op:?}, {columns} columns, {elements} elements, {dims:?}: {share}");
                        }
                        assert_eq!(times.flops, 2.0 * columns as f64 * rows(op, &x));
                    }
                }
            }
        }
    }
}

/// Rows that are used, by another way than the model's.
fn rows(op: FpgaOp, x: &Csf<f32>) -> f64 {
    let pattern = x.pattern();
    let above = (1..pattern.order() - 1).map(|level| pattern.nodes(level)).sum::<usize>();
    (pattern.nnz() + if op == FpgaOp::Mttkrp { above } else { 0 }) as f64
}

/// Figures 6 and 7: speed rises with the columns up to 32, what a unit loads in a cycle, and does not beyond.
#[test]
fn speed_rises_up_to_32_columns() {
    let x = tree(&generate::skewed(&[50, 60, 4000], 40_000, 3).unwrap(), 0);
    for op in [FpgaOp::Ttm, FpgaOp::Mttkrp] {
        // A board whose memory is not what bounds it shows the units.
        let fast = Board { bandwidth: 1e4, ..*arria() };
        let speed = |board: &Board, columns: usize| {
            let times = run(op, columns, 1, RowStore::Memory, board, &x);
            times.flops / times.simulated_s
        };
        for columns in [1, 2, 4, 8, 16] {
            let gain = speed(&fast, 2 * columns) / speed(&fast, columns);
            assert!((1.9..2.05).contains(&gain), "{op:?} from {columns} columns: {gain}");
            assert!(speed(arria(), 2 * columns) > 1.05 * speed(arria(), columns));
        }
        for columns in [32, 64] {
            let gain = speed(&fast, 2 * columns) / speed(&fast, columns);
            assert!((0.95..1.05).contains(&gain), "{op:?} from {columns} columns: {gain}");
        }
    }
}

#[test]
fn the_on_chip_matrix_is_never_slower_and_fits_as_the_paper_says() {
    // Nell-2's matrix: 28818 rows; the paper's design takes 1022 blocks for it at 16 columns, and does not fit beyond.
    assert_eq!(Board::matrix_blocks(28_818, 16), 1024);
    assert!(arria().holds(28_818, 16) && !arria().holds(28_818, 32));
    let x = tree(&generate::skewed(&[40, 50, 900], 40_000, 5).unwrap(), 0);
    for columns in [1, 4, 16] {
        let [memory, cached, on_chip] = [RowStore::Memory, RowStore::Cache(16 << 10), RowStore::OnChip]
            .map(|rows| run(FpgaOp::Ttm, columns, 1, rows, arria(), &x));
        assert!(on_chip.cycles <= memory.cycles && cached.cycles <= memory.cycles, "{columns}");
        assert!(cached.bytes < memory.bytes && on_chip.bytes <= cached.bytes, "{columns}");
        for times in [cached, on_chip] {
            assert!(times.model_s <= 1.001 * times.simulated_s, "{times:?}");
        }
    }
    let refused = FpgaRun { op: FpgaOp::Ttm, columns: 1024, elements: 1, rows: RowStore::OnChip }.simulate(arria(), &x);
    assert!(matches!(refused, Err(Error::Argument { name: "columns", .. })), "{refused:?}");
}

/// One nonzero: its row is asked for at once, comes after the bursts before it and the latency, and the result leaves by a burst more.
#[test]
fn one_nonzero_by_hand() {
    // 64 bytes a cycle: a burst takes one.
    let board = Board { channels: 1, bandwidth: 64.0, clock_mhz: 1000.0, latency: 10, outstanding: 4, ..*arria() };
    let x = CooTensor::new(vec![3, 4, 5], vec![vec![2], vec![1], vec![4]], vec![1.0f32]).unwrap();
    // Bursts of the fiber's boundary, of coordinate and value, of the row; the latency, the multiply-adds, the store's burst.
    let ttm = run(FpgaOp::Ttm, 16, 1, RowStore::Memory, &board, &tree(&x, 0));
    assert_eq!((ttm.cycles, ttm.bytes), (3 + 10 + 1 + 1, 4 * 64));
    // And of the fiber's boundary and coordinate below the slice; its row is asked for a cycle after the nonzero's.
    let mttkrp = run(FpgaOp::Mttkrp, 16, 1, RowStore::Memory, &board, &tree(&x, 0));
    assert_eq!((mttkrp.cycles, mttkrp.bytes), (5 + 10 + 1 + 1, 6 * 64));
    // Four bursts a row, two passes.
    let wide = run(FpgaOp::Ttm, 64, 1, RowStore::Memory, &board, &tree(&x, 0));
    assert_eq!((wide.cycles, wide.bytes), (2 + 4 + 10 + 2 + 4, 10 * 64));
    let none = CooTensor::new(vec![3, 4, 5], vec![vec![]; 3], vec![]).unwrap();
    let empty = run(FpgaOp::Mttkrp, 16, 1, RowStore::Memory, &board, &tree(&none, 0));
    assert_eq!((empty.cycles, empty.bytes, empty.model_s), (0, 0, 0.0));
}

#[test]
fn more_elements_are_faster_until_the_memory_is_busy() {
    let x = tree(&generate::skewed(&[400, 60, 500], 40_000, 3).unwrap(), 0);
    let fast = Board { bandwidth: 1e4, ..*arria() };
    for op in [FpgaOp::Ttm, FpgaOp::Mttkrp] {
        let cycles = |board: &Board, elements| run(op, 16, elements, RowStore::Memory, board, &x).cycles as f64;
        let gain = cycles(&fast, 1) / cycles(&fast, 4);
        assert!((3.0..=4.1).contains(&gain), "{op:?}: {gain}");
        let bound = cycles(arria(), 4) / cycles(arria(), 16);
        assert!((0.9..1.2).contains(&bound), "{op:?}: {bound}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = tree(&generate::skewed(&[10, 10, 10], 100, 3).unwrap(), 0);
    let refused = |columns, elements, rows| {
        let error = FpgaRun { op: FpgaOp::Mttkrp, columns, elements, rows }.simulate(arria(), &x).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
    };
    refused(0, 1, RowStore::Memory);
    refused(16, 0, RowStore::Memory);
    refused(16, 48, RowStore::Memory); // 1536 of 1518 DSP blocks.
    refused(16, 1, RowStore::Cache(63));
    assert!(Board::named("none").is_none());
}
