//go:build !linux

package servers

import (
	"errors"
	"syscall"
)

func ending() *syscall.SysProcAttr { return nil }

// Stop is for Linux.
func (s *Redis) Stop() error { return errors.ErrUnsupported }

// Continue is for Linux.
func (s *Redis) Continue() error { return errors.ErrUnsupported }
