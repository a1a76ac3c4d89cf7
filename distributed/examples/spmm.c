/* C = A B and FusedMM with its gradients on all ranks of a communicator of the program's own, A a cycle: row i has 2 at column i + 1. Tells right from wrong.
 *
 *   mpicc -Iinclude distributed/examples/spmm.c -Ltarget/release -lsparsimd_distributed -lm -o spmm && mpirun -n 4 ./spmm
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "sparsimd_mpi.h"

enum { ROWS = 3, N = 5 };

static void check(int failed, int rank) {
  if (failed) {
    fprintf(stderr, "rank %d: %s\n", rank, sparsimd_mpi_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

static int differs(double x, double y) { return fabs(x - y) > 1e-4 * (fabs(y) + 1.0); }

/* E_i = a_i s_i D_j for the only nonzero (i, j) of row i, s_i = C_i . B_j, and its gradients; a_i = 2. */
static int wrong_fused(const sparsimd_mpi_matrix *a, int rank, int all, int world) {
  float b[ROWS][N], c[ROWS][N], d[ROWS][2], de[ROWS][2], e[ROWS][3], dc[ROWS][N], db[ROWS][N], dd[ROWS][2], dvalues[ROWS];
  for (int i = 0; i < ROWS; ++i) {
    int row = rank * ROWS + i;
    for (int k = 0; k < N; ++k) {
      b[i][k] = (row + k) % 3 - 0.5f;
      c[i][k] = (row * k) % 4 + 0.25f;
    }
    for (int k = 0; k < 2; ++k) {
      d[i][k] = row % 5 + k;
      de[i][k] = 1.0f - k + row % 2;
    }
  }
  check(sparsimd_mpi_fusedmm(a, SPARSIMD_MPI_EDGE_SCALE, 0.0, N, c, N, b, N, 2, d, 2, e, 3), world);
  check(sparsimd_mpi_fusedmm_gradient(a, SPARSIMD_MPI_EDGE_SCALE, 0.0, N, c, N, b, N, 2, d, 2, de, 2, dc, N, db, N, dd, 2, dvalues), world);
  int wrong = 0;
  for (int i = 0; i < ROWS; ++i) {
    int row = rank * ROWS + i, next = (row + 1) % all, before = (row + all - 1) % all;
    double s = 0.0, g = 0.0, s_before = 0.0, g_before = 0.0;
    for (int k = 0; k < N; ++k) {
      s += ((row * k) % 4 + 0.25) * ((next + k) % 3 - 0.5);
      s_before += ((before * k) % 4 + 0.25) * b[i][k];
    }
    for (int k = 0; k < 2; ++k) {
      g += de[i][k] * (double)(next % 5 + k);
      g_before += (1.0 - k + before % 2) * d[i][k];
    }
    for (int k = 0; k < 2; ++k) {
      wrong += differs(e[i][k], 2.0 * s * (next % 5 + k));
      wrong += differs(dd[i][k], 2.0 * s_before * (1.0 - k + before % 2));
    }
    for (int k = 0; k < N; ++k) {
      wrong += differs(dc[i][k], 2.0 * g * ((next + k) % 3 - 0.5));
      wrong += differs(db[i][k], 2.0 * g_before * ((before * k) % 4 + 0.25));
    }
    wrong += differs(dvalues[i], s * g);
  }
  /* A result in an operand's memory, a function that there is none of, and gradients that one rank does not ask for. */
  wrong += !sparsimd_mpi_fusedmm(a, SPARSIMD_MPI_EDGE_SCALE, 0.0, N, c, N, b, N, 2, d, 2, d, 2);
  wrong += !sparsimd_mpi_fusedmm(a, 6, 0.0, N, c, N, b, N, 2, d, 2, e, 3);
  if (all > ROWS)
    wrong += !sparsimd_mpi_fusedmm_gradient(a, SPARSIMD_MPI_EDGE_SCALE, 0.0, N, c, N, b, N, 2, d, 2, de, 2, dc, N, db, N, dd, 2, rank ? dvalues : NULL);
  return wrong;
}

int main(int argc, char **argv) {
  int world, rank, size, threads;
  /* The library computes with threads, but calls MPI from this one alone. */
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads);
  MPI_Comm comm;
  MPI_Comm_rank(MPI_COMM_WORLD, &world);
  /* Ranks in reverse. */
  MPI_Comm_split(MPI_COMM_WORLD, 0, -world, &comm);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);

  uint64_t row_ptr[ROWS + 1];
  uint32_t col_idx[ROWS];
  float values[ROWS], b[ROWS][N], c[ROWS][N + 1], back[ROWS][N];
  int all = ROWS * size;
  for (int i = 0; i < ROWS; ++i) {
    row_ptr[i] = i;
    col_idx[i] = (rank * ROWS + i + 1) % all;
    values[i] = 2.0f;
    for (int j = 0; j < N; ++j) b[i][j] = 100.0f * (rank * ROWS + i) + j;
  }
  row_ptr[ROWS] = ROWS;
  sparsimd_mpi_given given = {.rows = ROWS, .cols = all, .b_rows = ROWS, .row_ptr = row_ptr, .col_idx = col_idx, .values = values, .n = N, .threads = 1};
  sparsimd_mpi_matrix *a;
  check(sparsimd_mpi_create(MPI_Comm_c2f(comm), &given, &a), world);
  check(sparsimd_mpi_spmm(a, N, b, N, c, N + 1), world);
  check(sparsimd_mpi_spmm_transposed(a, N, c, N + 1, back, N), world);
  check(sparsimd_mpi_sddmm(a, 1, N, c, N + 1, b, N, values), world);
  int wrong = 0;
  for (int i = 0; i < ROWS; ++i) {
    int next = (rank * ROWS + i + 1) % all;
    float dot = 0.0f;
    for (int j = 0; j < N; ++j) {
      wrong += c[i][j] != 2.0f * (100.0f * next + j);
      wrong += back[i][j] != 4.0f * b[i][j];
      dot += 2.0f * c[i][j] * (100.0f * next + j);
    }
    wrong += values[i] != dot;
  }
  wrong += wrong_fused(a, rank, all, world);
  /* The same B in memory that all ranks read, where they can. */
  sparsimd_mpi_common *common;
  void *memory;
  size_t ld;
  int in_common;
  check(sparsimd_mpi_common_create(a, N, &common, &memory, &ld, &in_common), world);
  float *rows = memory, again[ROWS][N];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < N; ++j) rows[i * ld + j] = b[i][j];
  check(sparsimd_mpi_spmm(a, N, rows, ld, again, N), world);
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < N; ++j) wrong += again[i][j] != c[i][j];
  sparsimd_mpi_common_destroy(common);
  /* An error of one rank is one of all. */
  int failed = sparsimd_mpi_spmm(a, rank == size - 1 ? N + 1 : N, b, N, c, N + 1);
  wrong += !failed;
  sparsimd_mpi_destroy(a);
  /* For dot products, and for what there is not. */
  given.operation = SPARSIMD_MPI_SDDMM;
  check(sparsimd_mpi_create(MPI_Comm_c2f(comm), &given, &a), world);
  float dots[ROWS];
  check(sparsimd_mpi_sddmm(a, 0, N, c, N + 1, b, N, dots), world);
  for (int i = 0; i < ROWS; ++i) wrong += 2.0f * dots[i] != values[i];
  sparsimd_mpi_destroy(a);
  given.operation = 5;
  wrong += !sparsimd_mpi_create(MPI_Comm_c2f(comm), &given, &a);
  given.operation = SPARSIMD_MPI_SPMM;
  /* Rows that no memory has. */
  given.rows = SIZE_MAX;
  wrong += !sparsimd_mpi_create(MPI_Comm_c2f(comm), &given, &a);
  given.rows = SIZE_MAX / 8;
  wrong += !sparsimd_mpi_create(MPI_Comm_c2f(comm), &given, &a);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (world == 0) printf("%d ranks: %s\n", size, wrong ? "wrong" : "right");
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return wrong != 0;
}
