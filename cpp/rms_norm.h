#pragma once

#include "arrays.h"

void bind_rms_norm(nb::module_& module);
