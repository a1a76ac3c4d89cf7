/* sparsimd on many machines: products of a sparse matrix whose rows, and those of the dense matrices, are cut between the ranks of
 * an MPI communicator; and CP decompositions of tensors whose entries are.
 *
 * Rank k has some rows of A, one after the other, and the same of C; and some rows of B, cut as the columns of A. All ranks of the
 * communicator call the same functions in the same order. Dense matrices are row-major, the elements of a row side by side, rows
 * ld... elements apart. Elements are float, or double where `double_precision` is 1; arrays of no elements may be null. A result shares
 * no memory with another array of the call. Operands are read where they are, and results written where they go; rows that travel are
 * copied, but for those in memory that ranks have in common (sparsimd_mpi_common_create).
 *
 * Functions return 0, or another number when a rank has failed: then on all ranks, and sparsimd_mpi_last_error() says of which one.
 * A matrix is used by the thread that made it, which is one that may call MPI, and destroyed before MPI_Finalize. MPI has been started
 * by MPI_Init_thread with MPI_THREAD_FUNNELED or more.
 *
 * The library: cargo rustc --release -p sparsimd-distributed --lib --features capi --crate-type cdylib
 */
#ifndef SPARSIMD_MPI_H
#define SPARSIMD_MPI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a matrix is laid out, and its algorithm chosen, for: other operations run too. */
enum {
  SPARSIMD_MPI_SPMM = 0,
  SPARSIMD_MPI_SDDMM = 1,
  SPARSIMD_MPI_FUSEDMM = 2,
  SPARSIMD_MPI_FUSEDMM_SOFTMAX = 3, /* with one of the softmax functions */
  SPARSIMD_MPI_FUSEDMM_GRADIENT = 4
};

/* This rank's part of A, and how products run, which is the same on all ranks but for `threads`. */
typedef struct sparsimd_mpi_given {
  size_t rows;             /* rows of A, and of C, on this rank */
  size_t cols;             /* columns of A */
  size_t b_rows;           /* rows of B on this rank: all ranks' together are `cols` */
  const uint64_t *row_ptr; /* where each row starts, and the end of the last one: rows + 1 numbers from 0 on */
  const uint32_t *col_idx; /* columns, ascending in each row */
  const void *values;      /* as many values as columns */
  int double_precision;    /* 0: float, 1: double */
  int operation;           /* SPARSIMD_MPI_SPMM, ... */
  size_t n;                /* columns of B that are expected: other numbers run too, but the plan is made for this one */
  size_t width;            /* likewise, of D (FusedMM); 0: as many */
  int algorithm;           /* 0: what the plan finds faster; 1: rows that nonzeros name; 2: all rows of B pass by */
  size_t replication;      /* ranks that share rows (algorithm 2), which divides the ranks; 0: the plan's choice */
  size_t threads;          /* of this rank; 0: its share of the machine's processors */
  int in_common;           /* whether the plan expects B and D in memory of sparsimd_mpi_common_create() */
} sparsimd_mpi_given;

typedef struct sparsimd_mpi_matrix sparsimd_mpi_matrix;

/* The message of the last call of this thread that failed. Valid until the next one. */
const char *sparsimd_mpi_last_error(void);

/* A matrix on the ranks of a communicator: MPI_Comm_c2f(comm), which is duplicated. What `given` points to is copied. */
int sparsimd_mpi_create(int comm, const sparsimd_mpi_given *given, sparsimd_mpi_matrix **matrix);

/* C = A B, B of n columns. */
int sparsimd_mpi_spmm(const sparsimd_mpi_matrix *matrix, size_t n, const void *b, size_t ldb, void *c, size_t ldc);

/* B = A^T C, C of n columns. */
int sparsimd_mpi_spmm_transposed(const sparsimd_mpi_matrix *matrix, size_t n, const void *c, size_t ldc, void *b, size_t ldb);

/* values[p] = C_i . B_j for this rank's nonzero p = (i, j), times its value if `scaled`; C and B of n columns. */
int sparsimd_mpi_sddmm(const sparsimd_mpi_matrix *matrix, int scaled, size_t n, const void *c, size_t ldc, const void *b, size_t ldb,
                       void *values);

/* The gradients of the same from `ds`, one number for each of this rank's nonzeros: dC = A_ds B and dB = A_ds^T C, A_ds being A with the
 * values ds. */
int sparsimd_mpi_sddmm_gradient(const sparsimd_mpi_matrix *matrix, size_t n, const void *c, size_t ldc, const void *b, size_t ldb,
                                const void *ds, void *dc, size_t lddc, void *db, size_t lddb);

/* The function f of FusedMM: the weight of a nonzero of the value a from the dot product s. */
enum {
  SPARSIMD_MPI_EDGE_IDENTITY = 0,          /* s */
  SPARSIMD_MPI_EDGE_SCALE = 1,             /* a s */
  SPARSIMD_MPI_EDGE_SIGMOID = 2,           /* 1 / (1 + exp(-s)) */
  SPARSIMD_MPI_EDGE_SOFTMAX = 3,           /* exp(scale s) divided by its sum over the row */
  SPARSIMD_MPI_EDGE_LEAKY_RELU = 4,        /* max(s, scale s) */
  SPARSIMD_MPI_EDGE_SOFTMAX_LEAKY_RELU = 5 /* exp(max(s, scale s)) divided by its sum over the row */
};

/* E_i = sum over the nonzeros (i, j) of f(C_i . B_j) D_j; C and B of n columns, D and E of `width`; D has the rows of B. `edge` and `scale`
 * are the same on all ranks; `scale` is looked at where the function has one. Where D is B, on all ranks, its rows travel once. */
int sparsimd_mpi_fusedmm(const sparsimd_mpi_matrix *matrix, int edge, double scale, size_t n, const void *c, size_t ldc, const void *b,
                         size_t ldb, size_t width, const void *d, size_t ldd, void *e, size_t lde);

/* The gradients of the same by C, B and D, from `de`, that of E. `dvalues` is null on all ranks, or receives the gradients by the values
 * of this rank's nonzeros, where f uses them (scale). */
int sparsimd_mpi_fusedmm_gradient(const sparsimd_mpi_matrix *matrix, int edge, double scale, size_t n, const void *c, size_t ldc,
                                  const void *b, size_t ldb, size_t width, const void *d, size_t ldd, const void *de, size_t ldde,
                                  void *dc, size_t lddc, void *db, size_t lddb, void *dd, size_t lddd, void *dvalues);

typedef struct sparsimd_mpi_common sparsimd_mpi_common;

/* Zeros for this rank's rows of a B or D of n columns, `*ld` elements apart from `*data` on, which the caller writes between calls of the
 * library. Where all ranks are on one machine (Linux) and see each other's processes, `*in_common` is 1, on all of them: the memory is
 * mapped by all, and the products of this matrix that take it as B or D on all ranks, `ldb` or `ldd` being `*ld`, read rows in place where
 * the algorithm is the one of rows that nonzeros name: spmm, sddmm and fusedmm. Else it is memory like any other. All ranks call this. */
int sparsimd_mpi_common_create(const sparsimd_mpi_matrix *matrix, size_t n, sparsimd_mpi_common **common, void **data, size_t *ld,
                               int *in_common);

/* Frees the memory, of this rank alone, before the matrix or after it. Null is nothing. */
void sparsimd_mpi_common_destroy(sparsimd_mpi_common *common);

/* Frees the matrix and its copy of the communicator. Null is nothing. */
void sparsimd_mpi_destroy(sparsimd_mpi_matrix *matrix);

/* This rank's entries of a tensor, any of them: ranks hand them to each other. No two of all ranks' are at one place. */
typedef struct sparsimd_mpi_entries {
  size_t order;           /* modes */
  const uint64_t *dims;   /* their lengths, of the whole tensor: the same on all ranks */
  size_t nnz;             /* entries on this rank */
  const uint32_t *coords; /* order * nnz coordinates, counted from 0: all of mode 0, then all of mode 1, ... */
  const void *values;     /* nnz values */
  int double_precision;   /* 0: float, 1: double; the same on all ranks */
  size_t threads;         /* of this rank; 0: its share of the machine's processors */
} sparsimd_mpi_entries;

/* A factor to start from, of the tensor's element type: the whole of it, or the rows that sparsimd_mpi_cp_rows() says are here. */
typedef struct sparsimd_mpi_factor {
  const void *data; /* rows of `cols` elements, `ld` elements apart */
  size_t rows;
  size_t cols; /* components */
  size_t ld;
} sparsimd_mpi_factor;

/* How to decompose: the same on all ranks, but what `init` points to. */
typedef struct sparsimd_mpi_cp_options {
  size_t rank;       /* components */
  size_t iterations; /* at most, those before a resumption included */
  double tolerance;  /* ends when the fit improves by less; 0: never */
  double ridge;      /* added to the diagonal of the normal equations; 0: none */
  int nonnegative;   /* whether all factors are kept non-negative */
  uint64_t seed;     /* of the random factors at the start, where `init` has none */
  const sparsimd_mpi_factor *init; /* factors to start from, one for each mode */
  size_t factors;         /* how many of them; 0: none */
  const char *checkpoint; /* UTF-8 path of a file for the state of the run, on a file system that the ranks share; null: none */
  size_t every;           /* it is written, whole or not at all, after each so many iterations */
  int resume;             /* whether the run goes on from the checkpoint, by any number of ranks, instead of from its start, if the file is there */
} sparsimd_mpi_cp_options;

typedef struct sparsimd_mpi_cp sparsimd_mpi_cp;

/* A tensor on the ranks of a communicator: MPI_Comm_c2f(comm), which is duplicated. What `given` points to is copied. */
int sparsimd_mpi_cp_create(int comm, const sparsimd_mpi_entries *given, sparsimd_mpi_cp **cp);

/* The CP decomposition by alternating least squares. The model that it had before, if any, stays where this fails. */
int sparsimd_mpi_cp_als(sparsimd_mpi_cp *cp, const sparsimd_mpi_cp_options *options);

/* The functions from here on are of this rank alone. Which rows of the factor of `mode` are here: from `first` on, `rows` of them. */
int sparsimd_mpi_cp_rows(const sparsimd_mpi_cp *cp, size_t mode, size_t *first, size_t *rows);

/* These rows, of as many columns as there are components, each column of the whole factor of length 1; of the tensor's element type. */
int sparsimd_mpi_cp_factor(const sparsimd_mpi_cp *cp, size_t mode, void *factor, size_t ld);

/* The weight of each component. */
int sparsimd_mpi_cp_weights(const sparsimd_mpi_cp *cp, double *weights);

/* 1 - |X - model| / |X| after the last iteration, and how many iterations there were. */
int sparsimd_mpi_cp_fit(const sparsimd_mpi_cp *cp, double *fit, size_t *iterations);

/* Frees the tensor, its model and its copy of the communicator. Null is nothing. */
void sparsimd_mpi_cp_destroy(sparsimd_mpi_cp *cp);

#ifdef __cplusplus
}
#endif

#endif
