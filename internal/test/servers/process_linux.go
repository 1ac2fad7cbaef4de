package servers

import "syscall"

// ending lets the server die with the process that has started it, however that ends.
func ending() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// Stop halts the server, which then answers nothing and keeps its connections, until Continue.
func (s *Redis) Stop() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue ends a Stop.
func (s *Redis) Continue() error { return s.cmd.Process.Signal(syscall.SIGCONT) }
