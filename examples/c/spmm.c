/* C = A B with a matrix prepared once and run many times, and new values on the same pattern.
 *
 *     cc spmm.c $(pkg-config --cflags --libs sparsimd) -o spmm && ./spmm
 */
#include <stdio.h>
#include <stdlib.h>

#include <sparsimd.h>

#define CHECK(call)                                                            \
    do {                                                                       \
        if ((call) != SPARSIMD_STATUS_OK) {                                    \
            fprintf(stderr, "%s: %s\n", #call, sparsimd_last_error());         \
            return 1;                                                          \
        }                                                                      \
    } while (0)

int main(void) {
    if (sparsimd_abi_version() != SPARSIMD_ABI_VERSION) {
        fprintf(stderr, "sparsimd.h and the library do not fit\n");
        return 1;
    }

    /* A = (1 . 2; . 3 .), B = ((0, 1), (10, 11), (20, 21)). */
    const size_t row_ptr[] = {0, 2, 3};
    const uint32_t col_idx[] = {0, 2, 1};
    const float values[] = {1, 2, 3};
    const float b[] = {0, 1, 10, 11, 20, 21};
    float c[4];

    sparsimd_cpu *cpu;
    sparsimd_csr *a;
    sparsimd_plan *plan;
    CHECK(sparsimd_cpu_create(0, &cpu));
    CHECK(sparsimd_csr_create_f32(2, 3, row_ptr, col_idx, values, &a));
    CHECK(sparsimd_plan_create(cpu, SPARSIMD_OP_SPMM, a, 2, SPARSIMD_PATH_AUTO, 1000, &plan));

    CHECK(sparsimd_spmm_f32(cpu, plan, 2, 1.0f, b, 2, 0.0f, c, 2));
    printf("%g %g\n%g %g\n", c[0], c[1], c[2], c[3]);
    if (c[0] != 40 || c[1] != 43 || c[2] != 30 || c[3] != 33) return 1;

    const float ones[] = {1, 1, 1};
    CHECK(sparsimd_plan_set_values_f32(plan, ones, 3));
    CHECK(sparsimd_spmm_f32(cpu, plan, 2, 1.0f, b, 2, 0.0f, c, 2));
    printf("%g %g\n%g %g\n", c[0], c[1], c[2], c[3]);
    if (c[0] != 20 || c[1] != 22 || c[2] != 10 || c[3] != 11) return 1;

    /* The same matrix in arrays that stay the caller's, with indices of int32_t: a direct plan reads them where they are. */
    const int32_t starts[] = {0, 2, 3}, columns[] = {0, 2, 1};
    sparsimd_csr *borrowed;
    sparsimd_plan *direct;
    CHECK(sparsimd_csr_borrow_f32(2, 3, starts, SPARSIMD_INDEX_I32, columns, SPARSIMD_INDEX_I32, values, &borrowed));
    CHECK(sparsimd_plan_create(cpu, SPARSIMD_OP_SPMM, borrowed, 2, SPARSIMD_PATH_DIRECT, 1, &direct));
    CHECK(sparsimd_spmm_f32(cpu, direct, 2, 1.0f, b, 2, 0.0f, c, 2));
    if (c[0] != 40 || c[1] != 43 || c[2] != 30 || c[3] != 33) return 1;
    CHECK(sparsimd_plan_destroy(direct));
    CHECK(sparsimd_csr_destroy(borrowed));

    /* A mistake is a status and a message. */
    if (sparsimd_spmm_f32(cpu, plan, 2, 1.0f, b, 1, 0.0f, c, 2) != SPARSIMD_STATUS_ARGUMENT) return 1;
    printf("refused: %s\n", sparsimd_last_error());

    CHECK(sparsimd_plan_destroy(plan));
    CHECK(sparsimd_csr_destroy(a));
    CHECK(sparsimd_cpu_destroy(cpu));
    return 0;
}
