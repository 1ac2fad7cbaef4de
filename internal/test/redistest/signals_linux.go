package redistest

import "syscall"

// ending lets the server die with the process that has started it, however that ends.
func ending() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// Stop halts the server, which then answers nothing and keeps its connections, until Continue.
func (s *Server) Stop() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue ends a Stop.
func (s *Server) Continue() error { return s.cmd.Process.Signal(syscall.SIGCONT) }
