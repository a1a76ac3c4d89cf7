//! bf16 and f16 in memory: every one is widened and rounded back to itself, and what is between two goes to the nearest.

use sparsimd_gpu_abi::format::{BF16, F16};
use sparsimd_shaders::memory::{Blocks, BlocksMut, Halves, HalvesMut, narrow, widen};
use spirv_std::glam::{UVec2, Vec4};

fn widened(format: u32, half: u32) -> f32 {
    widen(format, UVec2::new(half << 16, 0)).y
}

#[test]
fn every_half_is_what_it_was() {
    for format in [F16, BF16] {
        for half in 0..1u32 << 16 {
            // Beside other halves, each of the four in turn.
            let words =
                [UVec2::new(half, 0x3c00), UVec2::new(half << 16, 1), UVec2::new(7, half), UVec2::new(0, half << 16)];
            for (at, words) in words.into_iter().enumerate() {
                let four = widen(format, words);
                assert!(four[at] == widened(format, half) || four[at].is_nan() && widened(format, half).is_nan());
                if !four[at].is_nan() {
                    assert_eq!(narrow(format, four), words, "{format}, {half:#x}");
                } else {
                    let back = narrow(format, Vec4::splat(four[at])).x & 0xffff;
                    assert!(widened(format, back).is_nan(), "{half:#x}");
                }
            }
        }
    }
    // By the formats' definitions: 1, -2, the smallest normal, the largest subnormal, the smallest, the largest.
    let by_hand = [
        (0x3c00, 1.0),
        (0xc000, -2.0),
        (0x400, 2f32.powi(-14)),
        (0x3ff, 1023.0 * 2f32.powi(-24)),
        (1, 2f32.powi(-24)),
        (0x7bff, 65504.0),
    ];
    by_hand.into_iter().for_each(|(half, want)| assert_eq!(widened(F16, half), want));
    assert_eq!((widened(BF16, 0x3f80), widened(BF16, 0xc000), widened(BF16, 0x7f80)), (1.0, -2.0, f32::INFINITY));
}

#[test]
fn numbers_go_to_the_nearest_half_and_ties_to_the_even_one() {
    for (format, largest) in [(F16, 0x7bffu32), (BF16, 0x7f7f)] {
        let half = |x: f32| narrow(format, Vec4::new(x, -x, 0.0, 0.0)).x;
        for low in 0..largest {
            let (a, b) = (widened(format, low), widened(format, low + 1));
            // Exact: halves have at most eleven bits. (Below the smallest f32s there is no middle.)
            let middle = (f64::from(a) + f64::from(b)) / 2.0;
            if f64::from(middle as f32) != middle {
                continue;
            }
            let middle = middle as f32;
            let even = low + low % 2;
            for (x, want) in [(middle.next_down(), low), (middle, even), (middle.next_up(), low + 1)] {
                assert_eq!(half(x), want | (want | 0x8000) << 16, "{format}: {x:e}");
            }
        }
        assert_eq!(half(f32::MAX) & 0x7fff, largest + 1, "{format}: infinite");
    }
}

#[test]
fn blocks_are_read_and_written_in_their_places() {
    let mut words = [UVec2::ZERO; 3];
    let four = Vec4::new(1.0, -0.5, 3.0, 0.25);
    HalvesMut { words: &mut words, format: BF16 }.set(1, four);
    assert_eq!((words[0], words[2]), (UVec2::ZERO, UVec2::ZERO));
    assert_eq!(Halves { words: &words, format: BF16 }.get(1), four);
    assert_eq!(HalvesMut { words: &mut words, format: BF16 }.get(1), four);
}
