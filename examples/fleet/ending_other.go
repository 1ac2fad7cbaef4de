//go:build !linux

package main

import (
	"runtime"
	"syscall"
)

var exe = map[bool]string{true: ".exe"}[runtime.GOOS == "windows"]

// ending knows nothing of the kind elsewhere; a signal that can be caught ends the children all the same.
func ending() *syscall.SysProcAttr { return nil }
