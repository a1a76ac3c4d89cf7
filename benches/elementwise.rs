//! TEW (y = x + z, and so on) and TS (y = x times a number) on the values of one pattern.

mod settings;
mod tensor;

use criterion::{Criterion, criterion_group, criterion_main};
use sparsimd::generate;
use sparsimd::ops::Arithmetic;
use sparsimd::reference::Deviation;
use tensor::{one, setting};

/// The factor of TS.
const S: f32 = 1.5;

/// One rounding each: the correctly rounded value is the only right one.
fn exact(got: &[f32], want: impl Iterator<Item = f32>) -> Deviation {
    let wrong = got.iter().zip(want).position(|(got, want)| *got != want);
    Deviation { error: wrong.map_or(0.0, |_| f64::INFINITY), row: wrong.unwrap_or(0), col: 0 }
}

fn elementwise(c: &mut Criterion) {
    let (x, cpus) = setting();
    let x = x.values();
    let z: Vec<f32> = generate::uniform_values(x.len(), 9);
    let mut y = vec![0.0; x.len()];
    for cpu in &cpus {
        type Right = fn(f32, f32) -> f32;
        let operations: [(&str, Arithmetic, Right); 4] = [
            ("add", Arithmetic::Add, |x, z| x + z),
            ("sub", Arithmetic::Sub, |x, z| x - z),
            ("mul", Arithmetic::Mul, |x, z| x * z),
            ("div", Arithmetic::Div, |x, z| x / z),
        ];
        for (name, op, right) in operations {
            cpu.tew_values(op, x, &z, &mut y).expect("a run");
            let deviation = exact(&y, x.iter().zip(&z).map(|(&x, &z)| right(x, z)));
            let case = format!("{name}/threads={}", cpu.threads());
            one(c, "tew", &case, x.len(), deviation, || cpu.tew_values(op, x, &z, &mut y));
            cpu.ts_values(op, x, S, &mut y).expect("a run");
            let deviation = exact(&y, x.iter().map(|&x| right(x, S)));
            one(c, "ts", &case, x.len(), deviation, || cpu.ts_values(op, x, S, &mut y));
        }
    }
}

criterion_group! { name = benches; config = settings::criterion(); targets = elementwise }
criterion_main!(benches);
