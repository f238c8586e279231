#pragma once

#include "arrays.h"

void bind_targeting(nb::module_& module);
