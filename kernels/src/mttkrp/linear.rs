//! Coordinates out of linearised (bit-interleaved) keys.

/// Writes the bits of each key that `mask` names, packed, to `out`.
///
/// # Panics
/// When `out` is shorter than `keys`.
pub fn extract_coordinates(keys: &[u64], mask: u64, out: &mut [u32]) {
    let out = &mut out[..keys.len()];
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi2") {
        // SAFETY: the feature was just detected.
        unsafe { extract_bmi2(keys, mask, out) };
        return;
    }
    for (i, &key) in out.iter_mut().zip(keys) {
        *i = extract(key, mask);
    }
}

/// As [`extract_coordinates`], for keys of 128 bits.
///
/// # Panics
/// When `out` is shorter than `keys`.
pub fn extract_coordinates_wide(keys: &[u128], mask: u128, out: &mut [u32]) {
    let (low, high) = (mask as u64, (mask >> 64) as u64);
    let out = &mut out[..keys.len()];
    // Half at a time, so that both widths share one routine.
    const BATCH: usize = 64;
    for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
        let mut half = [0u64; BATCH];
        half.iter_mut().zip(keys).for_each(|(half, &key)| *half = key as u64);
        extract_coordinates(&half[..keys.len()], low, out);
        if high != 0 {
            let mut upper = [0u32; BATCH];
            half.iter_mut().zip(keys).for_each(|(half, &key)| *half = (key >> 64) as u64);
            extract_coordinates(&half[..keys.len()], high, &mut upper);
            // A coordinate of 32 bits that lies wholly above leaves nothing below.
            let shift = low.count_ones();
            out.iter_mut().zip(&upper).for_each(|(i, &upper)| *i |= upper.checked_shl(shift).unwrap_or(0));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi2")]
fn extract_bmi2(keys: &[u64], mask: u64, out: &mut [u32]) {
    for (i, &key) in out.iter_mut().zip(keys) {
        *i = core::arch::x86_64::_pext_u64(key, mask) as u32;
    }
}

/// One key, bit by bit.
fn extract(key: u64, mask: u64) -> u32 {
    let (mut rest, mut bit, mut i) = (mask, 0, 0);
    while rest != 0 {
        i |= ((key >> rest.trailing_zeros()) as u32 & 1) << bit;
        rest &= rest - 1;
        bit += 1;
    }
    i
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_routine_extracts_the_same_bits() {
        let keys: Vec<u128> = (0..200u128).map(|p| p.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)).collect();
        for mask in [0b1011u128, 0xffff_ffff << 50, 0x1111_1111_1111_1111_1111_1111_1111_1111, 0xffff_ffff << 96] {
            let mut got = vec![0; keys.len()];
            extract_coordinates_wide(&keys, mask, &mut got);
            for (key, got) in keys.iter().zip(got) {
                let bits = (0..128).filter(|&b| mask >> b & 1 == 1);
                let expected = bits.enumerate().fold(0u32, |i, (n, b)| i | ((key >> b & 1) as u32) << n);
                assert_eq!(got, expected);
            }
            let low: Vec<u64> = keys.iter().map(|&key| key as u64).collect();
            let mut got = vec![0; keys.len()];
            extract_coordinates(&low, mask as u64, &mut got);
            assert!(low.iter().zip(got).all(|(&key, got)| got == extract(key, mask as u64)));
        }
    }
}
