//go:build !linux

package redistest

import (
	"errors"
	"syscall"
)

func ending() *syscall.SysProcAttr { return nil }

// Stop is for Linux.
func (s *Server) Stop() error { return errors.ErrUnsupported }

// Continue is for Linux.
func (s *Server) Continue() error { return errors.ErrUnsupported }
