"""Operations with a plain torch specification and faster versions; they know nothing of indexes."""
