/*
 * Included ahead of every file when mlx-c is compiled on Linux against a prebuilt libmlx, and
 * again when bindgen reads its headers.
 *
 * mlx-c offers its 16-bit float accessors only where the compiler has ARM's half types. mlx-rs
 * needs them on every machine, so we claim both types, keep mlx-c's own half.h out (its guard is
 * MLX_HALF_H) and supply the types: MLX's in C++, plain 16-bit storage in C.
 */
#ifndef SLIPSTREAM_MLX_C_LINUX_H
#define SLIPSTREAM_MLX_C_LINUX_H

#define MLX_HALF_H
#define HAS_FLOAT16
#define HAS_BFLOAT16

#ifdef __cplusplus

/* MLX's headers use std::format, which libstdc++ has from GCC 13 on. Before that, fmt's. */
#if __has_include(<format>)
#include <format>
#else
#define FMT_HEADER_ONLY
#include <fmt/format.h>
namespace std {
using ::fmt::format;
}
#endif

#include "mlx/types/half_types.h"
using float16_t = mlx::core::float16_t;
using bfloat16_t = mlx::core::bfloat16_t;

#else

#include <stdint.h>
typedef struct float16_t {
  uint16_t bits;
} float16_t;
typedef uint16_t bfloat16_t;

#endif
#endif
