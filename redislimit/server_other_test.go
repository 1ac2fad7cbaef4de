//go:build unix && !linux

package redislimit

import "syscall"

func serverAttr() *syscall.SysProcAttr { return nil }

var signals = map[string]syscall.Signal{"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}
