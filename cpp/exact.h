#pragma once

#include "arrays.h"

void bind_exact(nb::module_& module);
