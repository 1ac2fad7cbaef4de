//go:build !purego

#include "textflag.h"

// func Read() uint64
TEXT ·Read(SB), NOSPLIT, $0-8
	MRS  CNTVCT_EL0, R0
	MOVD R0, ret+0(FP)
	RET

// func ReadInOrder() uint64
TEXT ·ReadInOrder(SB), NOSPLIT, $0-8
	ISB  $15
	MRS  CNTVCT_EL0, R0
	ISB  $15
	MOVD R0, ret+0(FP)
	RET

// func frequency() uint64
TEXT ·frequency(SB), NOSPLIT, $0-8
	MRS  CNTFRQ_EL0, R0
	MOVD R0, ret+0(FP)
	RET
