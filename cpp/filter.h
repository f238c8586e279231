#pragma once

#include "arrays.h"

void bind_filter(nb::module_& module);
