//! Random numbers that depend on the seed and on the sample's number alone, so that any thread may draw any sample.

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64 bits whose every output bit depends on every input
/// bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The fractional part of the golden ratio: SplitMix64's increment.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The numbers of one sample: a SplitMix64 sequence.
pub struct Stream(u64);

impl Stream {
    /// The sequence of sample `index` under `seed`.
    pub fn new(seed: u64, index: u64) -> Self {
        Self(mix(mix(seed.wrapping_add(GOLDEN)) ^ index.wrapping_mul(GOLDEN)))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Uniform in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in 0..bound.
    #[inline]
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of the product; its bias, bound / 2^64, is below anything that could be measured.
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }
}

/// A permutation of 0..dim, computed instead of stored.
///
/// Rounds of multiplication by an odd number and of a xor-shift permute the next power of two; values that fall outside
/// are permuted again until they are inside.
pub struct Scatter {
    dim: u64,
    mask: u64,
    shift: u32,
    odd: [u64; 3],
}

impl Scatter {
    /// The permutation of `0..dim` under `seed`.
    pub fn new(dim: usize, seed: u64) -> Self {
        let bits = crate::formats::packing::mode_bits(dim);
        let mut stream = Stream::new(seed, dim as u64);
        Self {
            dim: dim as u64,
            mask: if bits == 0 { 0 } else { u64::MAX >> (64 - bits) },
            shift: bits / 2 + 1,
            odd: std::array::from_fn(|_| stream.bits() | 1),
        }
    }

    /// The place of `x`, which is below the permutation's length.
    #[inline]
    pub fn apply(&self, x: usize) -> usize {
        let mut x = x as u64;
        loop {
            for odd in self.odd {
                // The addition moves 0, which multiplication alone leaves in place.
                x = x.wrapping_mul(odd).wrapping_add(odd >> 32) & self.mask;
                x ^= x >> self.shift;
            }
            if x < self.dim || self.dim == 0 {
                return x as usize;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_is_a_permutation() {
        for dim in [1, 2, 3, 5, 64, 100, 1000, 4097] {
            let scatter = Scatter::new(dim, 7);
            let mut seen: Vec<_> = (0..dim).map(|x| scatter.apply(x)).collect();
            let moved = (0..dim).filter(|&x| seen[x] != x).count();
            assert!(dim < 64 || moved > dim / 2, "{dim}: only {moved} moved");
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..dim), "{dim}");
        }
    }

    #[test]
    fn streams_are_uniform_and_differ() {
        let n = 100_000;
        let mean = |seed| (0..n).map(|i| Stream::new(seed, i).unit()).sum::<f64>() / n as f64;
        // The standard deviation of the mean is 0.0009.
        assert!((mean(1) - 0.5).abs() < 0.005 && (mean(2) - 0.5).abs() < 0.005);
        assert_ne!(Stream::new(1, 5).bits(), Stream::new(2, 5).bits());
        assert_ne!(Stream::new(1, 5).bits(), Stream::new(1, 6).bits());
        let mut stream = Stream::new(3, 0);
        assert!((0..1000).all(|_| stream.below(7) < 7));
    }
}
