package main

import "syscall"

const exe = ""

// ending makes the kernel end a child when this process is killed, so that none is left behind.
func ending() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
