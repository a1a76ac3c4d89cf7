/* C = A B on all ranks of a communicator of the program's own, A a cycle: row i has 2 at column i + 1. Tells right from wrong.
 *
 *   mpicc -Iinclude distributed/examples/spmm.c -Ltarget/release -lsparsimd_distributed -o spmm && mpirun -n 4 ./spmm
 */
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
  /* An error of one rank is one of all. */
  int failed = sparsimd_mpi_spmm(a, rank == size - 1 ? N + 1 : N, b, N, c, N + 1);
  wrong += !failed;
  sparsimd_mpi_destroy(a);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (world == 0) printf("%d ranks: %s\n", size, wrong ? "wrong" : "right");
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return wrong != 0;
}
