/* sparsimd: explicit-SIMD kernels for sparse matrices and tensors.
 *
 * Every operation returns a sparsimd_status; sparsimd_last_error() has the message of the last failure of the calling thread.
 * Dense matrices are row-major, the elements of a row side by side, rows one stride (ld..., in elements) apart. Arrays have
 * as many elements as the function says, and outputs overlap no input. Handles come from a _create function and go with the
 * _destroy function of their kind; null and handles of another kind are refused. Functions that take a handle as const may
 * run at the same time on several threads; others need the handle for themselves.
 *
 * Made by cbindgen from src/capi; do not edit.
 */


#ifndef SPARSIMD_H
#define SPARSIMD_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Major version of the library that this header belongs to.
#define SPARSIMD_VERSION_MAJOR 0

// Minor version of the library that this header belongs to.
#define SPARSIMD_VERSION_MINOR 1

// Patch version of the library that this header belongs to.
#define SPARSIMD_VERSION_PATCH 0

// Changes when a function changes its arguments or meaning; compare it with sparsimd_abi_version().
#define SPARSIMD_ABI_VERSION 1

// What a call came to. sparsimd_last_error() has the details.
typedef enum {
  // Done.
  SPARSIMD_STATUS_OK = 0,
  // An argument is outside its domain, a pointer is null or misaligned, or an output overlaps another operand.
  SPARSIMD_STATUS_ARGUMENT = 1,
  // Operands do not fit together.
  SPARSIMD_STATUS_SHAPE = 2,
  // Arrays do not form a valid matrix or tensor.
  SPARSIMD_STATUS_STRUCTURE = 3,
  // A handle is null, of another kind, of another element type, or destroyed.
  SPARSIMD_STATUS_HANDLE = 4,
  // This build or this machine lacks what was asked for.
  SPARSIMD_STATUS_UNAVAILABLE = 5,
  // Reading or writing failed.
  SPARSIMD_STATUS_IO = 6,
  // A mistake in the library. The operation did not finish; outputs are unspecified.
  SPARSIMD_STATUS_INTERNAL = 7,
} sparsimd_status;

// What a plan is for.
enum sparsimd_op
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // sparsimd_spmm_f32().
  SPARSIMD_OP_SPMM = 0,
  // sparsimd_spmm_t_f32().
  SPARSIMD_OP_SPMM_T = 1,
  // sparsimd_sddmm_f32() and sparsimd_sddmm_scaled_f32().
  SPARSIMD_OP_SDDMM = 2,
  // sparsimd_fusedmm_f32().
  SPARSIMD_OP_FUSEDMM = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_op sparsimd_op;
#else
typedef uint32_t sparsimd_op;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a plan lays out the nonzeros.
enum sparsimd_path
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Whichever is expected to be faster over the runs that were announced.
  SPARSIMD_PATH_AUTO = 0,
  // As they are.
  SPARSIMD_PATH_DIRECT = 1,
  // In panels that fit the cache; takes the time of some runs to make.
  SPARSIMD_PATH_PANEL = 2,
  // The fastest of some plans that are run on the matrix itself, which takes at most a tenth of the time that the announced
  // runs will take.
  SPARSIMD_PATH_MEASURE = 3,
  // In slices of rows, which take the time of some runs to make: SpMM with one column; as they are where that is not it.
  SPARSIMD_PATH_SLICES = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_path sparsimd_path;
#else
typedef uint32_t sparsimd_path;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The integers of an index array that is borrowed.
enum sparsimd_index
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // uint32_t.
  SPARSIMD_INDEX_U32 = 0,
  // int32_t.
  SPARSIMD_INDEX_I32 = 1,
  // uint64_t; of row pointers only.
  SPARSIMD_INDEX_U64 = 2,
  // int64_t; of row pointers only.
  SPARSIMD_INDEX_I64 = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_index sparsimd_index;
#else
typedef uint32_t sparsimd_index;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The function f of FusedMM: the weight of a nonzero from the dot product s and the value a.
enum sparsimd_edge
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // s.
  SPARSIMD_EDGE_IDENTITY = 0,
  // a s.
  SPARSIMD_EDGE_SCALE = 1,
  // 1 / (1 + exp(-s)).
  SPARSIMD_EDGE_SIGMOID = 2,
  // exp(scale s) divided by its sum over the row.
  SPARSIMD_EDGE_SOFTMAX = 3,
  // max(s, scale s).
  SPARSIMD_EDGE_LEAKY_RELU = 4,
  // exp(max(s, scale s)) divided by its sum over the row.
  SPARSIMD_EDGE_SOFTMAX_LEAKY_RELU = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_edge sparsimd_edge;
#else
typedef uint32_t sparsimd_edge;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What 16 bits of an operand are.
enum sparsimd_half
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // 8 bits of exponent, 7 of mantissa: the upper half of a float.
  SPARSIMD_HALF_BF16 = 0,
  // 5 bits of exponent, 10 of mantissa: IEEE 754's binary16.
  SPARSIMD_HALF_F16 = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_half sparsimd_half;
#else
typedef uint32_t sparsimd_half;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What becomes of the products of a row's nonzeros with rows of B.
enum sparsimd_reduction
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Their sum.
  SPARSIMD_REDUCTION_SUM = 0,
  // Their sum divided by their number.
  SPARSIMD_REDUCTION_MEAN = 1,
  // The largest, by column; NaN where one is.
  SPARSIMD_REDUCTION_MAX = 2,
  // The smallest, by column; NaN where one is.
  SPARSIMD_REDUCTION_MIN = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_reduction sparsimd_reduction;
#else
typedef uint32_t sparsimd_reduction;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An addition and a multiplication, in this order.
enum sparsimd_semiring
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // a + b, a b.
  SPARSIMD_SEMIRING_PLUS_TIMES = 0,
  // 0 or 1: whether any of both is not 0, whether both are not.
  SPARSIMD_SEMIRING_OR_AND = 1,
  // The smaller, a + b.
  SPARSIMD_SEMIRING_MIN_PLUS = 2,
  // The larger, a + b.
  SPARSIMD_SEMIRING_MAX_PLUS = 3,
  // The larger, a b.
  SPARSIMD_SEMIRING_MAX_TIMES = 4,
  // The smaller, a b.
  SPARSIMD_SEMIRING_MIN_TIMES = 5,
  // a + b, the smaller.
  SPARSIMD_SEMIRING_PLUS_MIN = 6,
  // The larger, the smaller.
  SPARSIMD_SEMIRING_MAX_MIN = 7,
  // The smaller, the larger.
  SPARSIMD_SEMIRING_MIN_MAX = 8,
  // a + b, b: values of A are not needed.
  SPARSIMD_SEMIRING_PLUS_SECOND = 9,
  // The larger, b: values of A are not needed.
  SPARSIMD_SEMIRING_MAX_SECOND = 10,
  // The smaller, b: values of A are not needed.
  SPARSIMD_SEMIRING_MIN_SECOND = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_semiring sparsimd_semiring;
#else
typedef uint32_t sparsimd_semiring;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a tensor is stored for MTTKRP.
enum sparsimd_tensor_format
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Whichever is expected to be fastest.
  SPARSIMD_TENSOR_FORMAT_AUTO = 0,
  // Coordinates.
  SPARSIMD_TENSOR_FORMAT_COO = 1,
  // Compressed sparse fibers, a tree for each mode.
  SPARSIMD_TENSOR_FORMAT_CSF_ALL = 2,
  // One tree for all modes.
  SPARSIMD_TENSOR_FORMAT_CSF_ONE = 3,
  // Two trees.
  SPARSIMD_TENSOR_FORMAT_CSF_TWO = 4,
  // Balanced trees, one for each mode.
  SPARSIMD_TENSOR_FORMAT_BCSF = 5,
  // Mixed-mode trees: every nonzero in one of them.
  SPARSIMD_TENSOR_FORMAT_MMCSF = 6,
  // Blocks of coordinates.
  SPARSIMD_TENSOR_FORMAT_HICOO = 7,
  // Coordinates in one integer.
  SPARSIMD_TENSOR_FORMAT_ALTO = 8,
  // Tiles, a copy for each mode.
  SPARSIMD_TENSOR_FORMAT_TILED = 9,
  // Tiled partial products that several modes share.
  SPARSIMD_TENSOR_FORMAT_TREE = 10,
  // One list of coordinates for sparsimd_mttkrp_all_f32(): all modes in one pass.
  SPARSIMD_TENSOR_FORMAT_JOINT = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_tensor_format sparsimd_tensor_format;
#else
typedef uint32_t sparsimd_tensor_format;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An operation on two numbers.
enum sparsimd_arithmetic
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // x + z.
  SPARSIMD_ARITHMETIC_ADD = 0,
  // x - z.
  SPARSIMD_ARITHMETIC_SUB = 1,
  // x z.
  SPARSIMD_ARITHMETIC_MUL = 2,
  // x / z.
  SPARSIMD_ARITHMETIC_DIV = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_arithmetic sparsimd_arithmetic;
#else
typedef uint32_t sparsimd_arithmetic;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How the factors begin.
enum sparsimd_tucker_start
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The leading singular vectors of the tensor unfolded in each mode.
  SPARSIMD_TUCKER_START_SVD = 0,
  // Orthonormalised random numbers.
  SPARSIMD_TUCKER_START_RANDOM = 1,
  // The factors that are given; the first one's values have no influence.
  SPARSIMD_TUCKER_START_FACTORS = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sparsimd_tucker_start sparsimd_tucker_start;
#else
typedef uint32_t sparsimd_tucker_start;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Executes operations: an instruction set and a pool of threads.
typedef struct sparsimd_cpu sparsimd_cpu;

// A sparse matrix by rows (CSR), or only its pattern.
typedef struct sparsimd_csr sparsimd_csr;

// A matrix prepared for an operation and its gradients.
typedef struct sparsimd_differentiable sparsimd_differentiable;

// A tensor by the fibers of one mode.
typedef struct sparsimd_fibers sparsimd_fibers;

// A tensor prepared for many MTTKRPs in all modes.
typedef struct sparsimd_mttkrp sparsimd_mttkrp;

// A matrix prepared for many runs of one operation.
typedef struct sparsimd_plan sparsimd_plan;

// A sparse tensor by coordinates.
typedef struct sparsimd_tensor sparsimd_tensor;

// How to decompose.
typedef struct {
  // Iterations at most, at least 1.
  size_t iterations;
  // Ends when the fit improves by less than this; 0 for never.
  double tolerance;
  // Added to the diagonal of the equations; 0 for none.
  double ridge;
  // Not 0: all factors are kept non-negative.
  uint32_t nonnegative;
  // Not 0: starts from the factors that are given; 0: from random ones.
  uint32_t start_from_factors;
  // Of the random start.
  uint64_t seed;
} sparsimd_cp_als_options;

// How FusedMM of heads weighs edges.
typedef struct {
  // A sparsimd_edge.
  uint32_t edge;
  // 0: scores are products of rows of C and B. 1: scores are sums of one number for each row and one for each column.
  uint32_t sums;
  // Heads, side by side in the columns of each dense matrix.
  size_t heads;
  // The factor of a softmax, or the slope of a leaky rectifier.
  double parameter;
  // Probability that a weight is dropped, from 0 to below 1.
  double dropout;
  // Decides with the number of the edge and head which are dropped.
  uint64_t seed;
} sparsimd_weighting;

// How to decompose.
typedef struct {
  // Iterations at most, at least 1.
  size_t iterations;
  // Ends when the fit improves by less than this; 0 for never.
  double tolerance;
  // A sparsimd_tucker_start.
  uint32_t start;
  // Of random numbers.
  uint64_t seed;
} sparsimd_tucker_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The SPARSIMD_ABI_VERSION of the library that is loaded.
uint32_t sparsimd_abi_version(void);

// The version of the library that is loaded, as text.
const char *sparsimd_version(void);

// The message of the last call of this thread that did not return SPARSIMD_STATUS_OK; empty when there was none. Valid until the
// next such call of this thread.
const char *sparsimd_last_error(void);

// Starts `threads` threads, or with 0 one for each processor that the process may use, pinned.
sparsimd_status sparsimd_cpu_create(size_t threads, sparsimd_cpu **cpu);

// Ends the threads. Null is allowed.
sparsimd_status sparsimd_cpu_destroy(sparsimd_cpu *cpu);

// Number of threads.
sparsimd_status sparsimd_cpu_threads(const sparsimd_cpu *cpu, size_t *threads);

// Prepares the tensor for MTTKRP in all modes with factors of `rank` columns, in a sparsimd_tensor_format. Runs with another
// number of columns are right, and may be slower.
sparsimd_status sparsimd_mttkrp_create(const sparsimd_cpu *cpu,
                                       const sparsimd_tensor *tensor,
                                       size_t rank,
                                       uint32_t format,
                                       sparsimd_mttkrp **mttkrp);

// Frees the prepared tensor. Null is allowed.
sparsimd_status sparsimd_mttkrp_destroy(sparsimd_mttkrp *mttkrp);

// How it is stored and why, a line for each decision, valid as long as the prepared tensor.
sparsimd_status sparsimd_mttkrp_text(const sparsimd_mttkrp *mttkrp, const char **text);

// Gives the prepared tensor `nnz` new values on its pattern, in the order of the tensor it was made from. The plan remains;
// the nonzeros are laid out anew.
sparsimd_status sparsimd_mttkrp_set_values_f32(const sparsimd_cpu *cpu,
                                               sparsimd_mttkrp *mttkrp,
                                               const float *values,
                                               size_t nnz);

// As sparsimd_mttkrp_set_values_f32().
sparsimd_status sparsimd_mttkrp_set_values_f64(const sparsimd_cpu *cpu,
                                               sparsimd_mttkrp *mttkrp,
                                               const double *values,
                                               size_t nnz);

// Row i of `out` = the sum over the nonzeros x at places with i in `mode` of x times the elementwise product of their rows
// of all other factors. `factors[m]` is dense, as many rows as mode m is long, `rank` columns, rows `strides[m]` elements
// apart; that of `mode` is not read and may be null.
sparsimd_status sparsimd_mttkrp_f32(const sparsimd_cpu *cpu,
                                    const sparsimd_mttkrp *mttkrp,
                                    size_t mode,
                                    size_t rank,
                                    const float *const *factors,
                                    const size_t *strides,
                                    float *out,
                                    size_t ldo);

// As sparsimd_mttkrp_f32().
sparsimd_status sparsimd_mttkrp_f64(const sparsimd_cpu *cpu,
                                    const sparsimd_mttkrp *mttkrp,
                                    size_t mode,
                                    size_t rank,
                                    const double *const *factors,
                                    const size_t *strides,
                                    double *out,
                                    size_t ldo);

// sparsimd_mttkrp_f32() of every mode from the same factors: `outs[m]`, rows `ldos[m]` elements apart, becomes that of mode m.
// A tensor prepared as SPARSIMD_TENSOR_FORMAT_JOINT takes one pass over the nonzeros for all of them.
sparsimd_status sparsimd_mttkrp_all_f32(const sparsimd_cpu *cpu,
                                        const sparsimd_mttkrp *mttkrp,
                                        size_t rank,
                                        const float *const *factors,
                                        const size_t *strides,
                                        float *const *outs,
                                        const size_t *ldos);

// As sparsimd_mttkrp_all_f32().
sparsimd_status sparsimd_mttkrp_all_f64(const sparsimd_cpu *cpu,
                                        const sparsimd_mttkrp *mttkrp,
                                        size_t rank,
                                        const double *const *factors,
                                        const size_t *strides,
                                        double *const *outs,
                                        const size_t *ldos);

// The CP decomposition by alternating least squares into `rank` components: X ~ the sum over r of `weights[r]` times the
// outer product of the r-th columns of all factors, which have length 1. `factors[m]` (as many rows as mode m is long,
// `rank` columns, rows `strides[m]` elements apart, no two of them overlapping) and `weights` receive the result, `fit`
// 1 - |X - model| / |X|, `iterations` how many there were.
sparsimd_status sparsimd_cp_als_f32(const sparsimd_cpu *cpu,
                                    const sparsimd_mttkrp *mttkrp,
                                    size_t rank,
                                    const sparsimd_cp_als_options *options,
                                    float *const *factors,
                                    const size_t *strides,
                                    double *weights,
                                    double *fit,
                                    size_t *iterations);

// As sparsimd_cp_als_f32().
sparsimd_status sparsimd_cp_als_f64(const sparsimd_cpu *cpu,
                                    const sparsimd_mttkrp *mttkrp,
                                    size_t rank,
                                    const sparsimd_cp_als_options *options,
                                    double *const *factors,
                                    const size_t *strides,
                                    double *weights,
                                    double *fit,
                                    size_t *iterations);

// Y = X op Z by elements, `op` a sparsimd_arithmetic, X and Z of the same lengths and element type. Where one of them stores
// nothing it is 0: Y has the places of both for add and sub, those that both have for mul, those of X for div, which must all
// be places of Z. With the same places in the same order Y keeps this order, else it is sorted.
sparsimd_status sparsimd_tew(const sparsimd_cpu *cpu,
                             uint32_t op,
                             const sparsimd_tensor *x,
                             const sparsimd_tensor *z,
                             sparsimd_tensor **y);

// Y = X op s on the stored elements of X, `op` a sparsimd_arithmetic, s rounded to X's element type. Y has the places of X.
sparsimd_status sparsimd_ts(const sparsimd_cpu *cpu,
                            uint32_t op,
                            const sparsimd_tensor *x,
                            double s,
                            sparsimd_tensor **y);

// Prepares the matrix for about `reuse` runs of sparsimd_fusedmm_heads_f32() and sparsimd_fusedmm_gradient_f32() on dense operands of `n`
// columns, by a sparsimd_path, with its transpose.
sparsimd_status sparsimd_differentiable_create(const sparsimd_cpu *cpu,
                                               const sparsimd_csr *csr,
                                               size_t n,
                                               uint32_t path,
                                               size_t reuse,
                                               sparsimd_differentiable **differentiable);

// Frees it. Null is allowed.
sparsimd_status sparsimd_differentiable_destroy(sparsimd_differentiable *differentiable);

// E_ih = sum over the nonzeros p = (i, j) of w_ph D_jh for each head h of the weighting: D dense K x p, E dense M x p. Scores are C_ih . B_jh
// (`left` is C, dense M x n, `right` B, dense K x n) or a_ih + b_jh (`left` is a, M x heads, `right` b, K x heads; `n` is not looked at).
// `bias` is null or has one number for each nonzero, added to the logits of a softmax. `lse` is null or receives M x heads numbers, the
// logarithms of each row's sum of exponentials, which the gradient needs.
sparsimd_status sparsimd_fusedmm_heads_f32(const sparsimd_cpu *cpu,
                                           const sparsimd_differentiable *differentiable,
                                           const sparsimd_weighting *weighting,
                                           size_t n,
                                           const float *left,
                                           size_t ldleft,
                                           const float *right,
                                           size_t ldright,
                                           const float *bias,
                                           size_t p,
                                           const float *d,
                                           size_t ldd,
                                           float *e,
                                           size_t lde,
                                           float *lse);

// The gradients of sparsimd_fusedmm_heads_f32() with the same operands, `lse` of it (not looked at without a softmax) and `de`, the gradient
// of E: `dleft`, `dright` and `dd` are as large as `left`, `right` and `d`; `dvalues` and `dbias` are null or have one number for each
// nonzero, where the edge function uses values and where there is a bias.
sparsimd_status sparsimd_fusedmm_gradient_f32(const sparsimd_cpu *cpu,
                                              const sparsimd_differentiable *differentiable,
                                              const sparsimd_weighting *weighting,
                                              size_t n,
                                              const float *left,
                                              size_t ldleft,
                                              const float *right,
                                              size_t ldright,
                                              const float *bias,
                                              size_t p,
                                              const float *d,
                                              size_t ldd,
                                              const float *lse,
                                              const float *de,
                                              size_t ldde,
                                              float *dleft,
                                              size_t lddleft,
                                              float *dright,
                                              size_t lddright,
                                              float *dd,
                                              size_t lddd,
                                              float *dvalues,
                                              float *dbias);

// As sparsimd_fusedmm_heads_f32().
sparsimd_status sparsimd_fusedmm_heads_f64(const sparsimd_cpu *cpu,
                                           const sparsimd_differentiable *differentiable,
                                           const sparsimd_weighting *weighting,
                                           size_t n,
                                           const double *left,
                                           size_t ldleft,
                                           const double *right,
                                           size_t ldright,
                                           const double *bias,
                                           size_t p,
                                           const double *d,
                                           size_t ldd,
                                           double *e,
                                           size_t lde,
                                           double *lse);

// As sparsimd_fusedmm_gradient_f32().
sparsimd_status sparsimd_fusedmm_gradient_f64(const sparsimd_cpu *cpu,
                                              const sparsimd_differentiable *differentiable,
                                              const sparsimd_weighting *weighting,
                                              size_t n,
                                              const double *left,
                                              size_t ldleft,
                                              const double *right,
                                              size_t ldright,
                                              const double *bias,
                                              size_t p,
                                              const double *d,
                                              size_t ldd,
                                              const double *lse,
                                              const double *de,
                                              size_t ldde,
                                              double *dleft,
                                              size_t lddleft,
                                              double *dright,
                                              size_t lddright,
                                              double *dd,
                                              size_t lddd,
                                              double *dvalues,
                                              double *dbias);

// As sparsimd_csr_borrow_f32(), with values of the elements that `half`, a sparsimd_half, says: a matrix of floats for plans and their
// runs, whatever dense operands store. By SPARSIMD_PATH_DIRECT the values are read where they are.
sparsimd_status sparsimd_csr_borrow_half(size_t rows,
                                         size_t cols,
                                         const void *row_ptr,
                                         uint32_t row_ptr_type,
                                         const void *col_idx,
                                         uint32_t col_idx_type,
                                         uint32_t half,
                                         const uint16_t *values,
                                         sparsimd_csr **csr);

// As sparsimd_plan_set_values_f32(), of the elements that `half`, a sparsimd_half, says.
sparsimd_status sparsimd_plan_set_values_half(sparsimd_plan *plan, uint32_t half, const uint16_t *values, size_t nnz);

// C = alpha A B + beta C as sparsimd_spmm_f32(), B and C of the elements that `half`, a sparsimd_half, says. Sums are of
// floats; each element of C is rounded once, to nearest, ties to even.
sparsimd_status sparsimd_spmm_half(const sparsimd_cpu *cpu,
                                   const sparsimd_plan *plan,
                                   uint32_t half,
                                   size_t n,
                                   float alpha,
                                   const uint16_t *b,
                                   size_t ldb,
                                   float beta,
                                   uint16_t *c,
                                   size_t ldc);

// C = alpha A^T B + beta C as sparsimd_spmm_t_f32(), B and C of halves as in sparsimd_spmm_half().
sparsimd_status sparsimd_spmm_t_half(const sparsimd_cpu *cpu,
                                     const sparsimd_plan *plan,
                                     uint32_t half,
                                     size_t n,
                                     float alpha,
                                     const uint16_t *b,
                                     size_t ldb,
                                     float beta,
                                     uint16_t *c,
                                     size_t ldc);

// As sparsimd_sddmm_f32(), C and B of the elements that `half`, a sparsimd_half, says; `out` is floats.
sparsimd_status sparsimd_sddmm_half(const sparsimd_cpu *cpu,
                                    const sparsimd_plan *plan,
                                    uint32_t half,
                                    size_t n,
                                    const uint16_t *c,
                                    size_t ldc,
                                    const uint16_t *b,
                                    size_t ldb,
                                    float *out);

// As sparsimd_sddmm_scaled_f32(), C and B of halves as in sparsimd_sddmm_half().
sparsimd_status sparsimd_sddmm_scaled_half(const sparsimd_cpu *cpu,
                                           const sparsimd_plan *plan,
                                           uint32_t half,
                                           size_t n,
                                           const uint16_t *c,
                                           size_t ldc,
                                           const uint16_t *b,
                                           size_t ldb,
                                           float *out);

// As sparsimd_sddmm_half(), `out` of halves, too: each is rounded once.
sparsimd_status sparsimd_sddmm_all_half(const sparsimd_cpu *cpu,
                                        const sparsimd_plan *plan,
                                        uint32_t half,
                                        size_t n,
                                        const uint16_t *c,
                                        size_t ldc,
                                        const uint16_t *b,
                                        size_t ldb,
                                        uint16_t *out);

// As sparsimd_sddmm_scaled_half(), `out` of halves, too: each is rounded once.
sparsimd_status sparsimd_sddmm_scaled_all_half(const sparsimd_cpu *cpu,
                                               const sparsimd_plan *plan,
                                               uint32_t half,
                                               size_t n,
                                               const uint16_t *c,
                                               size_t ldc,
                                               const uint16_t *b,
                                               size_t ldb,
                                               uint16_t *out);

// As sparsimd_fusedmm_f32(), C, B, D and E of the elements that `half`, a sparsimd_half, says. Edge values and sums are
// floats; each element of E is rounded once.
sparsimd_status sparsimd_fusedmm_half(const sparsimd_cpu *cpu,
                                      const sparsimd_plan *plan,
                                      uint32_t half,
                                      uint32_t edge,
                                      float scale,
                                      size_t n,
                                      const uint16_t *c,
                                      size_t ldc,
                                      const uint16_t *b,
                                      size_t ldb,
                                      size_t p,
                                      const uint16_t *d,
                                      size_t ldd,
                                      uint16_t *e,
                                      size_t lde);

// As sparsimd_mttkrp_create(), of a tensor of floats for factors of the elements that `half`, a sparsimd_half, says: more of their
// rows fit the caches. Runs with floats are right, and may be slower.
sparsimd_status sparsimd_mttkrp_create_half(const sparsimd_cpu *cpu,
                                            const sparsimd_tensor *tensor,
                                            uint32_t half,
                                            size_t rank,
                                            uint32_t format,
                                            sparsimd_mttkrp **mttkrp);

// As sparsimd_mttkrp_f32(), factors of the elements that `half`, a sparsimd_half, says; `out` is floats.
sparsimd_status sparsimd_mttkrp_half(const sparsimd_cpu *cpu,
                                     const sparsimd_mttkrp *mttkrp,
                                     uint32_t half,
                                     size_t mode,
                                     size_t rank,
                                     const uint16_t *const *factors,
                                     const size_t *strides,
                                     float *out,
                                     size_t ldo);

// As sparsimd_ttm_f32(), U and Y of the elements that `half`, a sparsimd_half, says. Sums are floats; each element of Y is rounded once.
sparsimd_status sparsimd_ttm_half(const sparsimd_cpu *cpu,
                                  const sparsimd_fibers *fibers,
                                  uint32_t half,
                                  size_t cols,
                                  const uint16_t *u,
                                  size_t ldu,
                                  uint16_t *y,
                                  size_t ldy);

// Copies a matrix of `rows` x `cols` in CSR: `rows + 1` row pointers, and as many column indices and values as the last row
// pointer says. `values` may be null for a pattern alone, which is enough for SDDMM and for FusedMM without scaling.
sparsimd_status sparsimd_csr_create_f32(size_t rows,
                                        size_t cols,
                                        const size_t *row_ptr,
                                        const uint32_t *col_idx,
                                        const float *values,
                                        sparsimd_csr **csr);

// As sparsimd_csr_create_f32().
sparsimd_status sparsimd_csr_create_f64(size_t rows,
                                        size_t cols,
                                        const size_t *row_ptr,
                                        const uint32_t *col_idx,
                                        const double *values,
                                        sparsimd_csr **csr);

// A matrix of `rows` x `cols` in CSR that stays in the caller's arrays, as scipy and PyTorch hold it: `rows + 1` row pointers
// of `row_ptr_type` (a sparsimd_index), and as many column indices of `col_idx_type` (SPARSIMD_INDEX_U32 or
// SPARSIMD_INDEX_I32) and values as the last row pointer says. `values` may be null for a pattern alone. The first row
// pointer may be above 0, as that of some rows of a larger matrix is: nonzeros are counted from there.
//
// The arrays are checked here, once, and nothing is copied. They must remain, unchanged, until the matrix and all plans made
// from it are destroyed: plans by SPARSIMD_PATH_DIRECT read them where they are (but for sparsimd_spmm_t_f32(), which needs
// the transpose); plans by SPARSIMD_PATH_PANEL and SPARSIMD_PATH_SLICES have copied what they need. An output must not overlap them.
sparsimd_status sparsimd_csr_borrow_f32(size_t rows,
                                        size_t cols,
                                        const void *row_ptr,
                                        uint32_t row_ptr_type,
                                        const void *col_idx,
                                        uint32_t col_idx_type,
                                        const float *values,
                                        sparsimd_csr **csr);

// As sparsimd_csr_borrow_f32().
sparsimd_status sparsimd_csr_borrow_f64(size_t rows,
                                        size_t cols,
                                        const void *row_ptr,
                                        uint32_t row_ptr_type,
                                        const void *col_idx,
                                        uint32_t col_idx_type,
                                        const double *values,
                                        sparsimd_csr **csr);

// The matrix with `count` blocks, at least one, along its diagonal, and nothing elsewhere: the batch of them, which every operation takes as
// one matrix, with one plan. Rows follow each other as the blocks do, and so do those of dense operands. Blocks may differ in shape;
// all are of one element type, and all have values or none has. They are copied.
sparsimd_status sparsimd_csr_block_diagonal(size_t count,
                                            const sparsimd_csr *const *blocks,
                                            sparsimd_csr **csr);

// Frees the matrix; plans made from it remain. Null is allowed.
sparsimd_status sparsimd_csr_destroy(sparsimd_csr *csr);

// The shape of the matrix and its number of nonzeros.
sparsimd_status sparsimd_csr_shape(const sparsimd_csr *csr, size_t *rows, size_t *cols, size_t *nnz);

// Prepares the matrix for about `reuse` runs of an operation (a sparsimd_op) on dense operands of `n` columns, by a
// sparsimd_path. The plan keeps what it needs of the matrix; of a borrowed one (sparsimd_csr_borrow_f32()) it may be the arrays
// themselves. Runs with another number of columns are right, and may be slower.
sparsimd_status sparsimd_plan_create(const sparsimd_cpu *cpu,
                                     uint32_t op,
                                     const sparsimd_csr *csr,
                                     size_t n,
                                     uint32_t path,
                                     size_t reuse,
                                     sparsimd_plan **plan);

// Frees the plan. Null is allowed.
sparsimd_status sparsimd_plan_destroy(sparsimd_plan *plan);

// The plan in words, valid as long as the plan.
sparsimd_status sparsimd_plan_text(const sparsimd_plan *plan, const char **text);

// Gives the plan `nnz` new values on its pattern, in the order of the matrix it was made from.
sparsimd_status sparsimd_plan_set_values_f32(sparsimd_plan *plan, const float *values, size_t nnz);

// As sparsimd_plan_set_values_f32().
sparsimd_status sparsimd_plan_set_values_f64(sparsimd_plan *plan, const double *values, size_t nnz);

// C = alpha A B + beta C: A sparse M x K, B dense K x n, C dense M x n, rows `ldb` and `ldc` elements apart. With beta = 0,
// C is not read.
sparsimd_status sparsimd_spmm_f32(const sparsimd_cpu *cpu,
                                  const sparsimd_plan *plan,
                                  size_t n,
                                  float alpha,
                                  const float *b,
                                  size_t ldb,
                                  float beta,
                                  float *c,
                                  size_t ldc);

// As sparsimd_spmm_f32().
sparsimd_status sparsimd_spmm_f64(const sparsimd_cpu *cpu,
                                  const sparsimd_plan *plan,
                                  size_t n,
                                  double alpha,
                                  const double *b,
                                  size_t ldb,
                                  double beta,
                                  double *c,
                                  size_t ldc);

// C = alpha A^T B + beta C: A sparse M x K, B dense M x n, C dense K x n.
sparsimd_status sparsimd_spmm_t_f32(const sparsimd_cpu *cpu,
                                    const sparsimd_plan *plan,
                                    size_t n,
                                    float alpha,
                                    const float *b,
                                    size_t ldb,
                                    float beta,
                                    float *c,
                                    size_t ldc);

// As sparsimd_spmm_t_f32().
sparsimd_status sparsimd_spmm_t_f64(const sparsimd_cpu *cpu,
                                    const sparsimd_plan *plan,
                                    size_t n,
                                    double alpha,
                                    const double *b,
                                    size_t ldb,
                                    double beta,
                                    double *c,
                                    size_t ldc);

// out_p = (C B^T)_ij for each nonzero p = (i, j) of A: C dense M x n, B dense K x n, `out` one value for each nonzero, in
// the order of the matrix.
sparsimd_status sparsimd_sddmm_f32(const sparsimd_cpu *cpu,
                                   const sparsimd_plan *plan,
                                   size_t n,
                                   const float *c,
                                   size_t ldc,
                                   const float *b,
                                   size_t ldb,
                                   float *out);

// As sparsimd_sddmm_f32().
sparsimd_status sparsimd_sddmm_f64(const sparsimd_cpu *cpu,
                                   const sparsimd_plan *plan,
                                   size_t n,
                                   const double *c,
                                   size_t ldc,
                                   const double *b,
                                   size_t ldb,
                                   double *out);

// out_p = a_ij (C B^T)_ij for each nonzero p = (i, j) of A, otherwise as sparsimd_sddmm_f32().
sparsimd_status sparsimd_sddmm_scaled_f32(const sparsimd_cpu *cpu,
                                          const sparsimd_plan *plan,
                                          size_t n,
                                          const float *c,
                                          size_t ldc,
                                          const float *b,
                                          size_t ldb,
                                          float *out);

// As sparsimd_sddmm_scaled_f32().
sparsimd_status sparsimd_sddmm_scaled_f64(const sparsimd_cpu *cpu,
                                          const sparsimd_plan *plan,
                                          size_t n,
                                          const double *c,
                                          size_t ldc,
                                          const double *b,
                                          size_t ldb,
                                          double *out);

// E_i = sum over the nonzeros (i, j) of A of f((C B^T)_ij, a_ij) D_j: C dense M x n, B dense K x n, D dense K x p, E dense
// M x p. `edge` is a sparsimd_edge; `scale` is the softmax's factor, the leaky rectifiers' slope, and otherwise not looked at.
// Rows without nonzeros become zeros.
sparsimd_status sparsimd_fusedmm_f32(const sparsimd_cpu *cpu,
                                     const sparsimd_plan *plan,
                                     uint32_t edge,
                                     float scale,
                                     size_t n,
                                     const float *c,
                                     size_t ldc,
                                     const float *b,
                                     size_t ldb,
                                     size_t p,
                                     const float *d,
                                     size_t ldd,
                                     float *e,
                                     size_t lde);

// As sparsimd_fusedmm_f32().
sparsimd_status sparsimd_fusedmm_f64(const sparsimd_cpu *cpu,
                                     const sparsimd_plan *plan,
                                     uint32_t edge,
                                     double scale,
                                     size_t n,
                                     const double *c,
                                     size_t ldc,
                                     const double *b,
                                     size_t ldb,
                                     size_t p,
                                     const double *d,
                                     size_t ldd,
                                     double *e,
                                     size_t lde);

// C = the reduction over the nonzeros (i, j) of A of a_ij B_j, by column: A sparse M x K, prepared for SPARSIMD_OP_SPMM, B dense
// K x n, C dense M x n. `reduction` is a sparsimd_reduction. Rows without nonzeros become zeros. `positions` may be null; with the
// maximum or minimum it gets, for each element of C by rows of n, the position of the nonzero that it comes from in the order of
// the matrix, or UINT32_MAX.
sparsimd_status sparsimd_spmm_reduce_f32(const sparsimd_cpu *cpu,
                                         const sparsimd_plan *plan,
                                         uint32_t reduction,
                                         size_t n,
                                         const float *b,
                                         size_t ldb,
                                         float *c,
                                         size_t ldc,
                                         uint32_t *positions);

// As sparsimd_spmm_reduce_f32().
sparsimd_status sparsimd_spmm_reduce_f64(const sparsimd_cpu *cpu,
                                         const sparsimd_plan *plan,
                                         uint32_t reduction,
                                         size_t n,
                                         const double *b,
                                         size_t ldb,
                                         double *c,
                                         size_t ldc,
                                         uint32_t *positions);

// C = A B with another addition and multiplication: A sparse M x K, prepared for SPARSIMD_OP_SPMM, B dense K x n, C dense M x n.
// `semiring` is a sparsimd_semiring. Rows without nonzeros become the neutral element of the addition: 0, or infinity where
// the smaller, minus infinity where the larger is taken.
sparsimd_status sparsimd_spmm_semiring_f32(const sparsimd_cpu *cpu,
                                           const sparsimd_plan *plan,
                                           uint32_t semiring,
                                           size_t n,
                                           const float *b,
                                           size_t ldb,
                                           float *c,
                                           size_t ldc);

// As sparsimd_spmm_semiring_f32().
sparsimd_status sparsimd_spmm_semiring_f64(const sparsimd_cpu *cpu,
                                           const sparsimd_plan *plan,
                                           uint32_t semiring,
                                           size_t n,
                                           const double *b,
                                           size_t ldb,
                                           double *c,
                                           size_t ldc);

// As sparsimd_spmm_reduce_f32(), of integers, which wrap around: on the pattern of `csr`, whose own values are not looked at, with
// `values` in its order. They have no plans, no positions and no SPARSIMD_REDUCTION_MEAN.
sparsimd_status sparsimd_spmm_reduce_i32(const sparsimd_cpu *cpu,
                                         const sparsimd_csr *csr,
                                         const int32_t *values,
                                         uint32_t reduction,
                                         size_t n,
                                         const int32_t *b,
                                         size_t ldb,
                                         int32_t *c,
                                         size_t ldc);

// As sparsimd_spmm_reduce_i32().
sparsimd_status sparsimd_spmm_reduce_i64(const sparsimd_cpu *cpu,
                                         const sparsimd_csr *csr,
                                         const int64_t *values,
                                         uint32_t reduction,
                                         size_t n,
                                         const int64_t *b,
                                         size_t ldb,
                                         int64_t *c,
                                         size_t ldc);

// As sparsimd_spmm_semiring_f32(), of integers, on the pattern of `csr` as sparsimd_spmm_reduce_i32(). `values` may be null where the
// semiring does not need them. The neutral element of the smaller and the larger is the largest and the least integer.
sparsimd_status sparsimd_spmm_semiring_i32(const sparsimd_cpu *cpu,
                                           const sparsimd_csr *csr,
                                           const int32_t *values,
                                           uint32_t semiring,
                                           size_t n,
                                           const int32_t *b,
                                           size_t ldb,
                                           int32_t *c,
                                           size_t ldc);

// As sparsimd_spmm_semiring_i32().
sparsimd_status sparsimd_spmm_semiring_i64(const sparsimd_cpu *cpu,
                                           const sparsimd_csr *csr,
                                           const int64_t *values,
                                           uint32_t semiring,
                                           size_t n,
                                           const int64_t *b,
                                           size_t ldb,
                                           int64_t *c,
                                           size_t ldc);

// Copies a tensor of `order` modes of the lengths `dims`: its nonzero p is `values[p]` at the place `coords[mode][p]`,
// counted from 0.
sparsimd_status sparsimd_tensor_create_f32(size_t order,
                                           const size_t *dims,
                                           size_t nnz,
                                           const uint32_t *const *coords,
                                           const float *values,
                                           sparsimd_tensor **tensor);

// As sparsimd_tensor_create_f32().
sparsimd_status sparsimd_tensor_create_f64(size_t order,
                                           const size_t *dims,
                                           size_t nnz,
                                           const uint32_t *const *coords,
                                           const double *values,
                                           sparsimd_tensor **tensor);

// Frees the tensor; what was made from it remains. Null is allowed.
sparsimd_status sparsimd_tensor_destroy(sparsimd_tensor *tensor);

// Number of nonzeros.
sparsimd_status sparsimd_tensor_nnz(const sparsimd_tensor *tensor, size_t *nnz);

// The nonzeros' coordinates in `mode`, valid as long as the tensor.
sparsimd_status sparsimd_tensor_coords(const sparsimd_tensor *tensor, size_t mode, const uint32_t **coords);

// The nonzeros' values, valid as long as the tensor.
sparsimd_status sparsimd_tensor_values_f32(const sparsimd_tensor *tensor, const float **values);

// As sparsimd_tensor_values_f32().
sparsimd_status sparsimd_tensor_values_f64(const sparsimd_tensor *tensor, const double **values);

// Sorts the nonzeros into fibers of `mode`: those that differ in this mode alone.
sparsimd_status sparsimd_fibers_create(const sparsimd_cpu *cpu,
                                       const sparsimd_tensor *tensor,
                                       size_t mode,
                                       sparsimd_fibers **fibers);

// Frees the fibers. Null is allowed.
sparsimd_status sparsimd_fibers_destroy(sparsimd_fibers *fibers);

// Number of fibers.
sparsimd_status sparsimd_fibers_count(const sparsimd_fibers *fibers, size_t *count);

// Where the fibers are: the coordinate of each in the `level`-th of the other modes, valid as long as the fibers.
sparsimd_status sparsimd_fibers_coords(const sparsimd_fibers *fibers, size_t level, const uint32_t **coords);

// Y = X x_n U, n being the mode of the fibers: U dense, as many rows as the mode is long, `cols` columns; row f of Y
// receives fiber f.
sparsimd_status sparsimd_ttm_f32(const sparsimd_cpu *cpu,
                                 const sparsimd_fibers *fibers,
                                 size_t cols,
                                 const float *u,
                                 size_t ldu,
                                 float *y,
                                 size_t ldy);

// As sparsimd_ttm_f32().
sparsimd_status sparsimd_ttm_f64(const sparsimd_cpu *cpu,
                                 const sparsimd_fibers *fibers,
                                 size_t cols,
                                 const double *u,
                                 size_t ldu,
                                 double *y,
                                 size_t ldy);

// y = X x_n v, n being the mode of the fibers: v one element for each index of the mode, y one for each fiber.
sparsimd_status sparsimd_ttv_f32(const sparsimd_cpu *cpu, const sparsimd_fibers *fibers, const float *v, float *y);

// As sparsimd_ttv_f32().
sparsimd_status sparsimd_ttv_f64(const sparsimd_cpu *cpu, const sparsimd_fibers *fibers, const double *v, double *y);

// Tucker's decomposition by higher-order orthogonal iteration: X ~ the core times `factors[m]` in every mode m. `factors[m]` (as
// many rows as mode m is long, `ranks[m]` orthonormal columns, rows `strides[m]` elements apart, no two of them overlapping) and
// `core` (the product of the ranks, the last mode's index running fastest) receive the result in double precision, `fit`
// 1 - |X - model| / |X|, `iterations` how many there were. No rank may exceed its mode's length or the product of the
// others.
sparsimd_status sparsimd_tucker(const sparsimd_cpu *cpu,
                                const sparsimd_tensor *tensor,
                                const size_t *ranks,
                                const sparsimd_tucker_options *options,
                                double *const *factors,
                                const size_t *strides,
                                double *core,
                                double *fit,
                                size_t *iterations);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPARSIMD_H */
