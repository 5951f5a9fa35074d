#!/bin/bash
touch ready
