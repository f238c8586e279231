#pragma once

#include "arrays.h"

void bind_select(nb::module_& module);
