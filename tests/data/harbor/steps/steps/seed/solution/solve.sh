#!/bin/bash
echo 1 > number
