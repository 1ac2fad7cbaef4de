package redislimit

import "syscall"

// There is no redis-server for Windows: tests that want one are skipped.
func serverAttr() *syscall.SysProcAttr { return nil }

var signals map[string]syscall.Signal
