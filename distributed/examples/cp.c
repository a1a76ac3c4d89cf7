/* A tensor of one component, its entries dealt out to all ranks, and what CP-ALS makes of it. Tells right from wrong.
 *
 *   mpicc -Iinclude distributed/examples/cp.c -Ltarget/release -lsparsimd_distributed -lm -o cp && mpirun -n 4 ./cp
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "sparsimd_mpi.h"

enum { I = 7, J = 5, K = 6, LONGEST = 7 };
static const uint64_t dims[3] = {I, J, K};

static void check(int failed, int rank) {
  if (failed) {
    fprintf(stderr, "rank %d: %s\n", rank, sparsimd_mpi_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

/* Element i of the vector of a mode: the tensor has the products of three of them. */
static double element(int mode, int i) { return 1.0 + (i * (mode + 2)) % 4; }

int main(int argc, char **argv) {
  int rank, size, threads;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  /* Every size-th entry, mode by mode. */
  static uint32_t all[3][I * J * K];
  static double values[I * J * K];
  size_t nnz = 0;
  for (int p = rank; p < I * J * K; p += size, ++nnz) {
    int at[3] = {p / (J * K), p / K % J, p % K};
    values[nnz] = 1.0;
    for (int mode = 0; mode < 3; ++mode) {
      all[mode][nnz] = at[mode];
      values[nnz] *= element(mode, at[mode]);
    }
  }
  static uint32_t coords[3 * I * J * K];
  for (int mode = 0; mode < 3; ++mode)
    for (size_t p = 0; p < nnz; ++p) coords[mode * nnz + p] = all[mode][p];

  sparsimd_mpi_entries given = {.order = 3, .dims = dims, .nnz = nnz, .coords = coords, .values = values, .double_precision = 1, .threads = 1};
  sparsimd_mpi_cp_options options = {.rank = 1, .iterations = 20, .seed = 3};
  sparsimd_mpi_cp *cp;
  check(sparsimd_mpi_cp_create(MPI_Comm_c2f(MPI_COMM_WORLD), &given, &cp), rank);
  int wrong = 0;
  double fit, weight;
  size_t iterations;
  /* No model yet. */
  wrong += !sparsimd_mpi_cp_fit(cp, &fit, &iterations);
  check(sparsimd_mpi_cp_als(cp, &options), rank);
  check(sparsimd_mpi_cp_fit(cp, &fit, &iterations), rank);
  check(sparsimd_mpi_cp_weights(cp, &weight), rank);
  wrong += iterations != 20 || fabs(fit - 1.0) > 1e-6;
  double lengths = 1.0;
  for (int mode = 0; mode < 3; ++mode) {
    size_t first, rows;
    double own[LONGEST][2], square = 0.0;
    check(sparsimd_mpi_cp_rows(cp, mode, &first, &rows), rank);
    wrong += first + rows > dims[mode];
    check(sparsimd_mpi_cp_factor(cp, mode, own, 2), rank);
    for (int i = 0; i < (int)dims[mode]; ++i) square += element(mode, i) * element(mode, i);
    for (size_t i = 0; i < rows; ++i) wrong += fabs(own[i][0] - element(mode, first + i) / sqrt(square)) > 1e-9;
    lengths *= sqrt(square);
    /* All rows are somewhere. */
    unsigned long long here = rows, everywhere;
    MPI_Allreduce(&here, &everywhere, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    wrong += everywhere != dims[mode];
  }
  wrong += fabs(weight - lengths) > 1e-9 * lengths;
  size_t first, rows;
  wrong += !sparsimd_mpi_cp_rows(cp, 3, &first, &rows);
  /* From factors that are the answer already, of which one iteration makes the same; those of one rank that are too short. */
  static double exact[3][LONGEST];
  sparsimd_mpi_factor init[3];
  for (int mode = 0; mode < 3; ++mode) {
    for (int i = 0; i < (int)dims[mode]; ++i) exact[mode][i] = element(mode, i);
    init[mode] = (sparsimd_mpi_factor){.data = exact[mode], .rows = dims[mode], .cols = 1, .ld = 1};
  }
  sparsimd_mpi_cp_options given_start = {.rank = 1, .iterations = 1, .init = init, .factors = 3};
  check(sparsimd_mpi_cp_als(cp, &given_start), rank);
  check(sparsimd_mpi_cp_fit(cp, &fit, &iterations), rank);
  wrong += iterations != 1 || fabs(fit - 1.0) > 1e-6;
  if (rank == size - 1) init[1].rows -= 1;
  wrong += !sparsimd_mpi_cp_als(cp, &given_start);
  /* No components, and a coordinate of one rank that there is not: errors of all. */
  options.rank = 0;
  wrong += !sparsimd_mpi_cp_als(cp, &options);
  wrong += sparsimd_mpi_cp_fit(cp, &fit, &iterations) || iterations != 1;
  sparsimd_mpi_cp_destroy(cp);
  if (rank == size - 1) coords[0] = I;
  wrong += !sparsimd_mpi_cp_create(MPI_Comm_c2f(MPI_COMM_WORLD), &given, &cp);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks: %s\n", size, wrong ? "wrong" : "right");
  MPI_Finalize();
  return wrong != 0;
}
