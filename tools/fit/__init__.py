"""Fits the cost curves of the shipped hardware profiles to public measurements."""
