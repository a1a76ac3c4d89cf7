/* MTTKRP on a tensor prepared once, new values on its pattern, and its CP decomposition.
 *
 *     cc cp_als.c $(pkg-config --cflags --libs sparsimd) -lm -o cp_als && ./cp_als
 */
#include <math.h>
#include <stdio.h>

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

    /* x(i, j, k) = a_i b_j c_k with a = (1, 2), b = (1, 0, 3), c = (2, 1): one component, zeros left out. */
    const size_t dims[] = {2, 3, 2};
    const uint32_t i[] = {0, 0, 0, 0, 1, 1, 1, 1};
    const uint32_t j[] = {0, 0, 2, 2, 0, 0, 2, 2};
    const uint32_t k[] = {0, 1, 0, 1, 0, 1, 0, 1};
    const uint32_t *const coords[] = {i, j, k};
    const double values[] = {2, 1, 6, 3, 4, 2, 12, 6};

    sparsimd_cpu *cpu;
    sparsimd_tensor *tensor;
    sparsimd_mttkrp *prepared;
    const char *why;
    CHECK(sparsimd_cpu_create(0, &cpu));
    CHECK(sparsimd_tensor_create_f64(3, dims, 8, coords, values, &tensor));
    CHECK(sparsimd_mttkrp_create(cpu, tensor, 1, SPARSIMD_TENSOR_FORMAT_AUTO, &prepared));
    CHECK(sparsimd_mttkrp_text(prepared, &why));
    printf("%s\n", why);

    /* Mode 0 with factors of ones: the sums over the slices. */
    const double ones[] = {1, 1, 1};
    const double *const inputs[] = {NULL, ones, ones};
    const size_t strides[] = {1, 1, 1};
    double sums[2];
    CHECK(sparsimd_mttkrp_f64(cpu, prepared, 0, 1, inputs, strides, sums, 1));
    printf("slices: %g %g\n", sums[0], sums[1]);
    if (sums[0] != 12 || sums[1] != 24) return 1;

    const sparsimd_cp_als_options options = {.iterations = 20, .tolerance = 1e-9};
    double a[2], b[3], c[2], weight, fit;
    double *const factors[] = {a, b, c};
    size_t iterations;
    CHECK(sparsimd_cp_als_f64(cpu, prepared, 1, &options, factors, strides, &weight, &fit, &iterations));
    printf("fit %.6f after %zu iterations, weight %.4f, a = (%.4f, %.4f)\n", fit, iterations, weight, a[0], a[1]);
    /* |a| |b| |c| = sqrt(5 * 10 * 5); a's direction is (1, 2). The fit is 1 up to half the digits: it is a difference of
     * squares. */
    if (fit < 1 - 1e-6 || fabs(weight - sqrt(250.0)) > 1e-6 || fabs(a[1] / a[0] - 2) > 1e-6) return 1;

    const double halves[] = {1, 0.5, 3, 1.5, 2, 1, 6, 3};
    CHECK(sparsimd_mttkrp_set_values_f64(cpu, prepared, halves, 8));
    CHECK(sparsimd_mttkrp_f64(cpu, prepared, 0, 1, inputs, strides, sums, 1));
    printf("slices of half the values: %g %g\n", sums[0], sums[1]);
    if (sums[0] != 6 || sums[1] != 12) return 1;

    CHECK(sparsimd_mttkrp_destroy(prepared));
    CHECK(sparsimd_tensor_destroy(tensor));
    CHECK(sparsimd_cpu_destroy(cpu));
    return 0;
}
