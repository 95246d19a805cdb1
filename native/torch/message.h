/* Messages of errors, without std::ostringstream: PyTorch's libc10 defines its constructor as libstdc++ does, and an object that is
 * made by the one and used by another version of the other crashes. */
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <cstdio>
#include <string>
#include <type_traits>

namespace tlrt {

inline std::string said(const char *t) { return t; }
inline std::string said(std::string_view t) { return std::string(t); }
inline std::string said(c10::ScalarType type) { return c10::toString(type); }
inline std::string said(const c10::Device &device) { return device.str(); }
template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0> std::string said(T number)
{
    if constexpr (std::is_integral_v<T>) return std::to_string(number);
    char text[40];
    std::snprintf(text, sizeof(text), "%g", (double)number);
    return text;
}
inline std::string said(c10::IntArrayRef list)
{
    std::string all;
    for (const int64_t n : list)
        all += (all.empty() ? "" : ", ") + std::to_string(n);
    return "[" + all + "]";
}

template <class... T> std::string message(const T &...parts) { return (said(parts) + ...); }

} // namespace tlrt
